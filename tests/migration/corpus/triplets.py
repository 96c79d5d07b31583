"""Metric learning: one model called three times for each loss."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
triplet_loss = nn.TripletMarginLoss(margin=0.5)

model.train()
for step in range(60):
    a, b = torch.randint(10, (2,)).tolist()
    same, other = (labels == a).nonzero().flatten(), (labels == (a + b + 1) % 10).nonzero().flatten()
    count = min(len(same) // 2, len(other), 32)
    anchor = features[same[:count]].to(device)
    positive = features[same[count : 2 * count]].to(device)
    negative = features[other[:count]].to(device)
    optimizer.zero_grad()
    anchor_out = model(anchor)
    positive_out = model(positive)
    negative_out = model(negative)
    loss = triplet_loss(anchor_out, positive_out, negative_out)
    loss.backward()
    optimizer.step()

print("RESULT", json.dumps({"loss": loss.item()}))
