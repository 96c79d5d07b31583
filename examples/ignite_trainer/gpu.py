"""Train a CNN on scikit-learn's handwritten digits with pytorch-ignite, on a GPU."""

from __future__ import annotations

import argparse
import sys

import torch
from ignite.contrib.handlers import ProgressBar
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, CosineAnnealingScheduler, DiskSaver
from ignite.metrics import Accuracy, Loss, RunningAverage
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--output", default="digits-output", help="where checkpoints go")
parser.add_argument("--resume", help="checkpoint to continue from")
parser.add_argument("--curve", help="where to draw the learning curve")
args = parser.parse_args()

torch.manual_seed(42)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels))
train_set, validation_set, test_set = random_split(digits, [1257, 270, 270], torch.Generator().manual_seed(0))
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
validation_loader = DataLoader(validation_set, batch_size=args.batch_size)
test_loader = DataLoader(test_set, batch_size=args.batch_size)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.3),
    nn.Linear(64 * 4 * 4, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
loss_fn = nn.CrossEntropyLoss()
metrics = {"accuracy": Accuracy(), "loss": Loss(loss_fn)}

device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
trainer = create_supervised_trainer(model, optimizer, loss_fn, device=device)
evaluator = create_supervised_evaluator(model, metrics, device=device)

steps = len(train_loader) * args.epochs
scheduler = CosineAnnealingScheduler(optimizer, "lr", args.lr, args.lr / 100, steps * 2)
trainer.add_event_handler(Events.ITERATION_STARTED, scheduler)
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
ProgressBar(persist=True).attach(trainer, ["loss"])
curve = []


@trainer.on(Events.EPOCH_COMPLETED)
def validate():
    state = evaluator.run(validation_loader)
    losses = trainer.state.metrics["loss"], state.metrics["loss"]
    curve.append((trainer.state.epoch, *losses, state.metrics["accuracy"]))
    print(f"epoch {trainer.state.epoch:2d}: validation accuracy {state.metrics['accuracy']:.1%}")


to_save = {"model": model, "optimizer": optimizer, "trainer": trainer, "lr_scheduler": scheduler}
latest = Checkpoint(to_save, DiskSaver(args.output, require_empty=False), n_saved=1)
best = Checkpoint(
    {"model": model},
    DiskSaver(args.output, require_empty=False),
    filename_prefix="best",
    score_name="accuracy",
    score_function=lambda engine: engine.state.metrics["accuracy"],
)
trainer.add_event_handler(Events.EPOCH_COMPLETED, latest)
evaluator.add_event_handler(Events.COMPLETED, best)
if args.resume:
    Checkpoint.load_objects(to_save, torch.load(args.resume, weights_only=True))

trainer.run(train_loader, max_epochs=args.epochs)

if best.last_checkpoint is not None:
    model.load_state_dict(torch.load(best.last_checkpoint, weights_only=True))
accuracy = evaluator.run(test_loader).metrics["accuracy"]
print(f"test accuracy {accuracy:.1%}")

if args.curve:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    epochs, train_loss, validation_loss, validation_accuracy = zip(*curve)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    left.plot(epochs, train_loss, label="training")
    left.plot(epochs, validation_loss, label="validation")
    left.set(xlabel="epoch", ylabel="loss", yscale="log")
    left.legend()
    right.plot(epochs, [100 * value for value in validation_accuracy])
    right.axhline(100 * accuracy, linestyle=":", label=f"test: {accuracy:.1%}")
    right.set(xlabel="epoch", ylabel="validation accuracy (%)")
    right.legend()
    figure.savefig(args.curve)

if accuracy < (0.97 if args.epochs >= 10 else 0.8):
    sys.exit("the model has not learnt")
