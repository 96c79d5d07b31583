"""Handlers of this library in a hand-written PopTorch loop: schedules, shared IPUs, statistics, averaged weights."""

from __future__ import annotations

import torch
from ignite.engine import Engine, Events
from ignite.handlers import PiecewiseLinear
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from ignite_ipu import BatchGeometry, backend
from ignite_ipu.handlers import EMA, DeviceSwap, IPUStats, OptimizerSync, RecompileWatch

poptorch = backend.poptorch()
torch.manual_seed(0)
images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
options = poptorch.Options().deviceIterations(4)
loader = poptorch.DataLoader(options, digits, batch_size=16, shuffle=True)
validation = poptorch.DataLoader(poptorch.Options(), digits, batch_size=599)


class WithLoss(nn.Module):
    """What PopTorch compiles for training: the model and its loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.model(x), y)


model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
average = EMA(model, momentum=0.01, every=7)
optimizer = poptorch.optim.Adam(model.parameters(), lr=0.005)
watch = RecompileWatch()
training_model = watch.watch(poptorch.trainingModel(WithLoss(model), options, optimizer))
inference_model = poptorch.inferenceModel(model, poptorch.Options())

trainer = Engine(lambda engine, batch: training_model(*batch).item())
evaluator = Engine(lambda engine, batch: (inference_model(batch[0]), batch[1]))
Accuracy().attach(evaluator, "accuracy")

schedule = PiecewiseLinear(optimizer, "lr", milestones_values=[(0, 0.005), (28 * 5, 0.0005)])
trainer.add_event_handler(Events.ITERATION_STARTED, schedule)
OptimizerSync(training_model, optimizer).attach(trainer)
DeviceSwap(training_model, inference_model).attach(trainer, evaluator)
IPUStats(lambda: BatchGeometry.from_options(options, 16)).attach(trainer)
average.attach(trainer)


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate():
    accuracy = evaluator.run(validation).metrics["accuracy"]
    rate = trainer.state.metrics["ipu/samples_per_second"]
    print(f"epoch {trainer.state.epoch}: accuracy {accuracy:.1%}, {rate:.0f} samples per second on this machine")


trainer.run(loader, max_epochs=5)
with torch.no_grad():
    averaged = (average.model(digits.tensors[0]).argmax(1) == digits.tensors[1]).float().mean().item()
print(f"averaged weights: accuracy {averaged:.1%}")
assert evaluator.state.metrics["accuracy"] > 0.95 and averaged > 0.9
assert watch.found == []
training_model.destroy()
inference_model.destroy()
