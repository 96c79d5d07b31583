"""A siamese network that sees both images in one forward and returns their similarity."""

import json

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten())
        self.fc = nn.Sequential(nn.Linear(2 * 128, 32), nn.ReLU(inplace=True), nn.Linear(32, 1))

    def forward_once(self, x):
        return self.features(x)

    def forward(self, input1, input2):
        output = torch.cat((self.forward_once(input1), self.forward_once(input2)), 1)
        return torch.sigmoid(self.fc(output)).squeeze(1)


def make_pairs(count):
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(digits.target)
    first = torch.randint(len(labels), (count,))
    second = torch.randint(len(labels), (count,))
    for index in range(0, count, 2):
        same = (labels == labels[first[index]]).nonzero().flatten()
        second[index] = same[index % len(same)]
    return TensorDataset(images[first], images[second], (labels[first] == labels[second]).float())


def train(model, device, train_loader, optimizer, epoch):
    model.train()
    criterion = nn.BCELoss()
    for batch_idx, (images_1, images_2, targets) in enumerate(train_loader):
        images_1, images_2, targets = images_1.to(device), images_2.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(images_1, images_2)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
    return loss.item()


def test(model, device, test_loader):
    model.eval()
    test_loss = 0.0
    correct = 0
    with torch.no_grad():
        for images_1, images_2, targets in test_loader:
            images_1, images_2, targets = images_1.to(device), images_2.to(device), targets.to(device)
            outputs = model(images_1, images_2)
            test_loss += F.binary_cross_entropy(outputs, targets, reduction="sum").item()
            correct += (outputs > 0.5).eq(targets > 0.5).sum().item()
    return correct / len(test_loader.dataset)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(make_pairs(640), batch_size=64, shuffle=True)
    test_loader = DataLoader(make_pairs(150), batch_size=100)
    model = SiameseNetwork().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(2):
        loss = train(model, device, train_loader, optimizer, epoch)
        accuracy = test(model, device, test_loader)
    print("RESULT", json.dumps({"loss": loss, "accuracy": accuracy}))


if __name__ == "__main__":
    main()
