"""An Ignite engine over a process function that calls the model three times."""
import json

import torch
from ignite.engine import Engine, Events
from ignite.metrics import RunningAverage
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
anchor, positive = torch.randint(1000, (512,)), torch.randint(1000, (512,))
negative = torch.randint(1000, (512,))
loader = DataLoader(TensorDataset(images[anchor], images[positive], images[negative]), batch_size=64, drop_last=True)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.TripletMarginLoss(margin=1.0)
penalty = 0.01


def update(engine, batch):
    model.train()
    optimizer.zero_grad()
    a, p, n = (part.to(device) for part in batch)
    ea, ep, en = model(a), model(p), model(n)
    loss = criterion(ea, ep, en)
    loss = loss + penalty * (ea.pow(2).mean() + ep.pow(2).mean())
    loss.backward()
    optimizer.step()
    return {"loss": loss.item(), "norm": ea.norm(dim=1).mean().item()}


trainer = Engine(update)
RunningAverage(output_transform=lambda out: out["loss"]).attach(trainer, "loss")
history = []


@trainer.on(Events.EPOCH_COMPLETED)
def log(engine):
    history.append([engine.state.metrics["loss"], engine.state.output["norm"]])


trainer.run(loader, max_epochs=2)
print("RESULT", json.dumps({"history": history}))
