"""One loss, and one optimizer each for the encoder and the head."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True)

encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU()).to(device)
head = nn.Linear(32, 10).to(device)
encoder_optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
head_optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()

for epoch in range(2):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        encoder_optimizer.zero_grad()
        head_optimizer.zero_grad()
        hidden = encoder(x)
        logits = head(hidden)
        loss = criterion(logits, y)
        loss.backward()
        encoder_optimizer.step()
        head_optimizer.step()

print("RESULT", json.dumps({"loss": loss.item()}))
