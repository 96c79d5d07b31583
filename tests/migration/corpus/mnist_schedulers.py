"""Ignite with a warm-up, a torch schedule per epoch and an Ignite schedule per iteration."""

import json

import torch
import torch.nn.functional as F
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import CosineAnnealingScheduler, create_lr_scheduler_with_warmup
from sklearn.datasets import load_digits
from torch import nn, optim
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
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
train_set, _ = load_digits_data()
train_loader = DataLoader(train_set, batch_size=64, shuffle=True)

model = Net().to(device)
optimizer = optim.SGD(
    [{"params": model.fc2.parameters(), "lr": 0.05}, {"params": model.conv1.parameters()}],
    lr=0.01,
    momentum=0.9,
)
for parameter in [*model.conv2.parameters(), *model.fc1.parameters()]:
    parameter.requires_grad_(False)
trainer = create_supervised_trainer(model, optimizer, F.nll_loss, device)

cosine = CosineAnnealingScheduler(
    optimizer, "lr", start_value=0.05, end_value=0.001, cycle_size=2 * len(train_loader), param_group_index=0
)
warm_up = create_lr_scheduler_with_warmup(
    cosine, warmup_start_value=0.0, warmup_end_value=0.05, warmup_duration=5
)
trainer.add_event_handler(Events.ITERATION_STARTED, warm_up)


@trainer.on(Events.EPOCH_COMPLETED)
def step():
    optimizer.param_groups[1]["lr"] *= 0.5


trainer.run(train_loader, max_epochs=2)
rates = [group["lr"] for group in optimizer.param_groups]
print("RESULT", json.dumps({"rates": rates, "loss": trainer.state.output}))
