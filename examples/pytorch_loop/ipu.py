"""Classify scikit-learn's handwritten digits with plain PyTorch: the script that the porting tutorial starts from."""

from __future__ import annotations

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from ignite_ipu import host_device, ipu_prepare


class ClassificationModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 16, 2)
        self.norm = nn.GroupNorm(4, 16)
        self.fc1 = nn.Linear(64, 100)
        self.fc2 = nn.Linear(100, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.norm(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(torch.flatten(x, start_dim=1)))
        return self.fc2(x)


def train(model, device, loader, optimizer, criterion):
    model.train()
    for data, labels in loader:
        data, labels = data.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = criterion(model(data), labels)
        loss.backward()
        optimizer.step()
    return loss.item()


def test(model, device, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, labels in loader:
            output = model(data.to(device))
            correct += (output.argmax(1).cpu() == labels).sum().item()
    return correct / len(loader.dataset)


def main():
    torch.manual_seed(0)
    device = host_device()
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    train_data, test_data = TensorDataset(images[:1408], labels[:1408]), TensorDataset(images[1408:], labels[1408:])
    train_loader = DataLoader(train_data, batch_size=16, shuffle=True)
    test_loader = DataLoader(test_data, batch_size=100)

    model = ClassificationModel().to(device)
    optimizer = ipu_prepare(torch.optim.Adam(model.parameters(), lr=3e-3), model)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(4):
        loss = train(model, device, train_loader, optimizer, criterion)
        print(f"epoch {epoch + 1}: loss {loss:.4f}")
    accuracy = test(model, device, test_loader)
    print(f"accuracy {accuracy:.1%}")
    if accuracy < 0.9:
        sys.exit("the model has not learnt")


if __name__ == "__main__":
    main()
