"""Transfer learning with phases: one loop trains and validates under set_grad_enabled."""

import copy
import json

import torch
import torch.nn as nn
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
digits = load_digits()
features = torch.tensor(digits.data, dtype=torch.float32) / 16.0
labels = torch.tensor(digits.target)
dataloaders = {
    "train": DataLoader(TensorDataset(features[:1280], labels[:1280]), batch_size=64, shuffle=True),
    "val": DataLoader(TensorDataset(features[1280:], labels[1280:]), batch_size=100),
}


def train_model(model, criterion, optimizer, scheduler, num_epochs):
    best_model, best_acc = copy.deepcopy(model.state_dict()), 0.0
    for epoch in range(num_epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_corrects = 0
            for inputs, targets in dataloaders[phase]:
                inputs = inputs.to(device)
                targets = targets.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, targets)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_corrects += torch.sum(preds == targets.data).item()
            if phase == "train":
                scheduler.step()
            epoch_acc = running_corrects / len(dataloaders[phase].dataset)
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model = copy.deepcopy(model.state_dict())
    model.load_state_dict(best_model)
    return best_acc


model_conv = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
for param in model_conv[0].parameters():
    param.requires_grad = False
model_conv = model_conv.to(device)
optimizer_conv = optim.SGD(model_conv[2:].parameters(), lr=0.05, momentum=0.9)
exp_lr_scheduler = lr_scheduler.StepLR(optimizer_conv, step_size=7, gamma=0.1)
accuracy = train_model(model_conv, nn.CrossEntropyLoss(), optimizer_conv, exp_lr_scheduler, num_epochs=3)
print("RESULT", json.dumps({"accuracy": accuracy}))
