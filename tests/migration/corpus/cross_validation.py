"""A new model and optimizer for every fold, all trained by one loop."""

import json

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
dataset = TensorDataset(features[:1536], labels[:1536])
results = []

for fold, (train_ids, test_ids) in enumerate(KFold(n_splits=3).split(dataset)):
    trainloader = DataLoader(Subset(dataset, train_ids), batch_size=64, shuffle=True)
    testloader = DataLoader(Subset(dataset, test_ids), batch_size=100)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    loss_function = nn.CrossEntropyLoss()
    network.train()
    for epoch in range(2):
        for inputs, targets in trainloader:
            inputs, targets = inputs.to(device), targets.to(device)
            optimizer.zero_grad()
            outputs = network(inputs)
            loss = loss_function(outputs, targets)
            loss.backward()
            optimizer.step()
    correct = total = 0
    network.eval()
    with torch.inference_mode():
        for inputs, targets in testloader:
            outputs = network(inputs.to(device))
            correct += (outputs.argmax(1).cpu() == targets).sum().item()
            total += len(targets)
    results.append(correct / total)
print("RESULT", json.dumps({"folds": results}))
