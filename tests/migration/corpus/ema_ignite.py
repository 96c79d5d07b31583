"""Ignite keeps an exponential moving average of the weights and evaluates it."""

import json

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import EMAHandler
from ignite.metrics import Accuracy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True)
test_loader = DataLoader(TensorDataset(features[1280:], labels[1280:]), batch_size=100)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device=device)
ema_handler = EMAHandler(model, momentum=0.05)
ema_handler.attach(trainer, name="ema_momentum", event=Events.ITERATION_COMPLETED(every=5))
ema_evaluator = create_supervised_evaluator(ema_handler.ema_model, metrics={"accuracy": Accuracy()}, device=device)

trainer.run(train_loader, max_epochs=2)
ema_evaluator.run(test_loader)
print("RESULT", json.dumps({"accuracy": ema_evaluator.state.metrics["accuracy"], "loss": trainer.state.output}))
