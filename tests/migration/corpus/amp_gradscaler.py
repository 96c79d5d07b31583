"""Mixed precision with autocast and a gradient scaler."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
use_amp = torch.cuda.is_available()
device = "cuda" if use_amp else "cpu"
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True)

net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loss_fn = nn.CrossEntropyLoss()
scaler = torch.cuda.amp.GradScaler(enabled=use_amp)

for epoch in range(2):
    for input, target in loader:
        input, target = input.to(device), target.to(device)
        with torch.autocast(device_type=device, enabled=use_amp):
            output = net(input)
            loss = loss_fn(output, target)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()

print("RESULT", json.dumps({"loss": loss.item()}))
