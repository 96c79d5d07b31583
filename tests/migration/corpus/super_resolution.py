"""Super resolution by sub-pixel convolution: the loss is added up before `backward()`, the test tells the PSNR."""

from __future__ import print_function

import argparse
import json
from math import log10

import torch
import torch.nn as nn
import torch.nn.init as init
import torch.optim as optim
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="Super resolution")
parser.add_argument("--upscale_factor", type=int, default=2)
parser.add_argument("--batchSize", type=int, default=32)
parser.add_argument("--testBatchSize", type=int, default=10)
parser.add_argument("--nEpochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--cuda", action="store_true")
opt = parser.parse_args([])
device = torch.device("cuda" if opt.cuda else "cpu")
torch.manual_seed(123)


class DatasetFromDigits(Dataset):
    def __init__(self, images):
        self.images = torch.tensor(images, dtype=torch.float32).unsqueeze(1) / 16

    def __getitem__(self, index):
        target = self.images[index]
        return nn.functional.avg_pool2d(target, 2), target

    def __len__(self):
        return len(self.images)


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super(Net, self).__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 16, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(16, 16, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(16, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        self._initialize_weights()

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        return self.pixel_shuffle(self.conv3(x))

    def _initialize_weights(self):
        init.orthogonal_(self.conv1.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv2.weight, init.calculate_gain("relu"))
        init.orthogonal_(self.conv3.weight)


images = load_digits().images
training_data_loader = DataLoader(DatasetFromDigits(images[:320]), batch_size=opt.batchSize, shuffle=True)
testing_data_loader = DataLoader(DatasetFromDigits(images[320:360]), batch_size=opt.testBatchSize, shuffle=False)
model = Net(upscale_factor=opt.upscale_factor).to(device)
criterion = nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=opt.lr)
losses = []


def train(epoch):
    epoch_loss = 0
    for iteration, batch in enumerate(training_data_loader, 1):
        input, target = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        epoch_loss += loss.item()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        print("===> Epoch[{}]({}/{}): Loss: {:.4f}".format(epoch, iteration, len(training_data_loader), loss.item()))
    print("===> Epoch {} Complete: Avg. Loss: {:.4f}".format(epoch, epoch_loss / len(training_data_loader)))


def test():
    avg_psnr = 0
    with torch.no_grad():
        for batch in testing_data_loader:
            input, target = batch[0].to(device), batch[1].to(device)
            prediction = model(input)
            mse = criterion(prediction, target)
            avg_psnr += 10 * log10(1 / mse.item())
    return avg_psnr / len(testing_data_loader)


for epoch in range(1, opt.nEpochs + 1):
    train(epoch)
    psnr = test()
    print("===> Avg. PSNR: {:.4f} dB".format(psnr))
print("RESULT", json.dumps({"losses": losses, "psnr": psnr}))
