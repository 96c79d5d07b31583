"""A variational autoencoder whose loss is a sum over the samples of a batch, the last of which is smaller."""

import argparse
import json

import torch
import torch.utils.data
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional as F

parser = argparse.ArgumentParser(description="VAE Example")
parser.add_argument("--batch-size", type=int, default=48)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--log-interval", type=int, default=5)
args = parser.parse_args([])
args.cuda = torch.cuda.is_available()
torch.manual_seed(1)
device = torch.device("cuda" if args.cuda else "cpu")
kwargs = {"num_workers": 1, "pin_memory": True} if args.cuda else {}
images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(load_digits().target)
train_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images[:500], labels[:500]),
    batch_size=args.batch_size,
    shuffle=True,
    generator=torch.Generator().manual_seed(1),
    **kwargs,
)
test_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images[500:600], labels[500:600]), batch_size=args.batch_size, shuffle=False, **kwargs
)


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(64, 32)
        self.fc21 = nn.Linear(32, 4)
        self.fc22 = nn.Linear(32, 4)
        self.fc3 = nn.Linear(4, 32)
        self.fc4 = nn.Linear(32, 64)
        self.noise = 0.0

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std) * self.noise
        return mu + eps * std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)
losses = []


# Reconstruction + KL divergence losses summed over all elements and batch
def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        losses.append(loss.item())
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print("Train Epoch: {} [{}]\tLoss: {:.6f}".format(epoch, batch_idx * len(data), loss.item() / len(data)))
    print("====> Epoch: {} Average loss: {:.4f}".format(epoch, train_loss / len(train_loader.dataset)))


def test(epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for i, (data, _) in enumerate(test_loader):
            data = data.to(device)
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
    return test_loss / len(test_loader.dataset)


if __name__ == "__main__":
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        test_loss = test(epoch)
        with torch.no_grad():
            sample = torch.randn(8, 4, generator=torch.Generator().manual_seed(epoch)).to(device)
            sample = model.decode(sample).cpu()
    print("RESULT", json.dumps({"losses": losses[:20], "test": test_loss, "sample": sample.mean().item()}))
