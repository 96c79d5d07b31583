"""Ignite stops when the validation loss has not improved for some epochs, and keeps the best model."""

import json

import torch
import torch.nn.functional as F
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import EarlyStopping
from ignite.metrics import Loss, RunningAverage
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


torch.manual_seed(0)
use_cuda = torch.cuda.is_available()
device = torch.device("cuda:0" if use_cuda else "cpu")
train_set, val_set = load_digits_data()
train_loader = DataLoader(train_set, batch_size=64, shuffle=True, drop_last=True, pin_memory=use_cuda)
val_loader = DataLoader(val_set, batch_size=100)

model = Net().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
criterion = nn.NLLLoss().to(device)
trainer = create_supervised_trainer(model, optimizer, criterion, device=device, non_blocking=True)
RunningAverage(output_transform=lambda x: x).attach(trainer, "running")
evaluator = create_supervised_evaluator(model, metrics={"nll": Loss(criterion)}, device=device, non_blocking=True)
evaluator.add_event_handler(
    Events.COMPLETED,
    EarlyStopping(patience=1, score_function=lambda engine: -engine.state.metrics["nll"], trainer=trainer),
)


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    evaluator.run(val_loader)


trainer.run(train_loader, max_epochs=3)
print("RESULT", json.dumps({"epochs": trainer.state.epoch, "nll": evaluator.state.metrics["nll"]}))
