"""Ignite logs losses, metrics and learning rates to TensorBoard."""

import json
import tempfile
from argparse import ArgumentParser

import torch
import torch.nn.functional as F
from ignite.contrib.handlers import TensorboardLogger, global_step_from_engine
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load_digits_data():
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    y = torch.tensor(digits.target)
    return TensorDataset(x[:1280], y[:1280]), TensorDataset(x[1280:], y[1280:])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(16 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=-1)


def run(args, log_dir):
    train_set, val_set = load_digits_data()
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=args.batch_size)
    device = args.device
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.5)
    trainer = create_supervised_trainer(model, optimizer, nn.NLLLoss(), device=device)
    evaluator = create_supervised_evaluator(model, metrics={"accuracy": Accuracy()}, device=device)

    with TensorboardLogger(log_dir=log_dir) as tb_logger:
        tb_logger.attach_output_handler(
            trainer, event_name=Events.ITERATION_COMPLETED(every=5), tag="training", output_transform=lambda loss: {"loss": loss}
        )
        tb_logger.attach_output_handler(
            evaluator,
            event_name=Events.EPOCH_COMPLETED,
            tag="validation",
            metric_names="all",
            global_step_transform=global_step_from_engine(trainer),
        )
        tb_logger.attach_opt_params_handler(trainer, event_name=Events.ITERATION_STARTED, optimizer=optimizer)

        @trainer.on(Events.EPOCH_COMPLETED)
        def validate():
            evaluator.run(val_loader)

        trainer.run(train_loader, max_epochs=args.epochs)
    return evaluator.state.metrics["accuracy"]


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        print("RESULT", json.dumps({"accuracy": run(arguments, folder)}))
