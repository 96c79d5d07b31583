"""Plain PyTorch in a class that holds the model, the optimizer and the loop."""

import json

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, learning_rate):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate, weight_decay=0.01)
        self.history = []

    def fit(self, loader, epochs):
        for _ in range(epochs):
            self.model.train()
            for x, y in loader:
                x, y = x.to(self.device), y.to(self.device)
                self.optimizer.zero_grad(set_to_none=True)
                logits = self.model(x)
                loss = self.criterion(logits, y)
                loss.backward()
                self.optimizer.step()
                self.history.append(loss.detach())

    @torch.no_grad()
    def score(self, loader):
        self.model.eval()
        right = total = 0
        for x, y in loader:
            logits = self.model(x.to(self.device))
            right += (logits.argmax(1).cpu() == y).sum().item()
            total += len(y)
        return right / total


torch.manual_seed(0)
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
train_loader = DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True)
test_loader = DataLoader(TensorDataset(features[1280:], labels[1280:]), batch_size=100)

trainer = Trainer(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.0), nn.Linear(32, 10)), 1e-2)
trainer.fit(train_loader, epochs=3)
print("RESULT", json.dumps({"accuracy": trainer.score(test_loader), "loss": trainer.history[-1].item()}))
