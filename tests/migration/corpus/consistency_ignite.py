"""A process function with two losses of one model, and Ignite's evaluator of that model after every epoch."""

import json

import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.metrics import Accuracy, Loss
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(images[:1280], labels[:1280]), batch_size=64, shuffle=True)
val_loader = DataLoader(TensorDataset(images[1280:], labels[1280:]), batch_size=100)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def train_step(engine, batch):
    model.train()
    x, y = batch[0].to(device), batch[1].to(device)
    optimizer.zero_grad()
    clean = model(x)
    dim = model(x * 0.5)
    classified = F.cross_entropy(clean, y)
    consistent = F.mse_loss(dim, clean)
    loss = classified + 0.1 * consistent
    loss.backward()
    optimizer.step()
    return {"classified": classified.item(), "consistent": consistent.item()}


trainer = Engine(train_step)
metrics = {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())}
evaluator = create_supervised_evaluator(model, metrics=metrics, device=device)
history = []


@trainer.on(Events.EPOCH_COMPLETED)
def validate():
    evaluator.run(val_loader)
    history.append(evaluator.state.metrics["loss"])


trainer.run(train_loader, max_epochs=3)
print("RESULT", json.dumps({"history": history, "train": trainer.state.output}))
