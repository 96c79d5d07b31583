"""Ignite's learning-rate finder over a supervised trainer, then a run with the rate it suggests."""

import json

import torch
from ignite.engine import create_supervised_trainer
from ignite.handlers import FastaiLRFinder
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True)

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device=device)

lr_finder = FastaiLRFinder()
to_save = {"model": model, "optimizer": optimizer}
with lr_finder.attach(trainer, to_save=to_save, end_lr=1.0, num_iter=20) as trainer_with_lr_finder:
    trainer_with_lr_finder.run(loader)

optimizer.param_groups[0]["lr"] = 0.05
trainer.run(loader, max_epochs=1)
print("RESULT", json.dumps({"points": len(lr_finder.get_results()["lr"]), "loss": trainer.state.output}))
