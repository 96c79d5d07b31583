"""Programs like public code: `check`, `auto` and `migrate` agree, with the native numbers."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import Source
from tests.doors.judging import assert_refused, assert_trains, losses_of

pytestmark = pytest.mark.filterwarnings("ignore")

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
losses = []
"""
CONTRASTIVE = """
class Trainer:
    def __init__(self, model, optimizer, temperature=0.5, device="cpu"):
        self.model, self.optimizer, self.temperature, self.device = model.to(device), optimizer, temperature, device
        self.criterion = nn.CrossEntropyLoss().to(device)

    def logits_of(self, features):
        labels = torch.arange(len(features) // 2).repeat(2)
        same = labels.unsqueeze(0) == labels.unsqueeze(1)
        features = F.normalize(features, dim=1)
        similarity = features @ features.T
        others = ~torch.eye(len(labels), dtype=torch.bool).to(self.device)
        same, similarity = same[others].view(len(labels), -1), similarity[others].view(len(labels), -1)
        logits = torch.cat([similarity[same].view(len(labels), -1), similarity[~same].view(len(labels), -1)], dim=1)
        return logits / self.temperature, torch.zeros(len(labels), dtype=torch.long).to(self.device)

    def train(self, batches):
        for views in batches:
            logits, labels = self.logits_of(self.model(torch.cat(views).to(self.device)))
            loss = self.criterion(logits, labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.extend([loss.item(), (logits.argmax(1) == labels).float().mean().item()])

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
trainer = Trainer(model, torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-4))
trainer.train([(torch.randn(4, 8), torch.randn(4, 8)) for _ in range(2)])
"""
HINGE_GAN = """
generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
for _ in range(2):
    critic.zero_grad()
    real, fake = torch.randn(8, 8), generator(torch.randn(8, 4))
    loss_d = torch.relu(1.0 - critic(real)).mean() + torch.relu(1.0 + critic(fake.detach())).mean()
    loss_d.backward()
    optimizer_d.step()
    generator.zero_grad()
    loss_g = -critic(fake).mean()
    loss_g.backward()
    optimizer_g.step()
    losses += [loss_d.item(), loss_g.item()]
"""
METRICS = """
net, confusion = nn.Linear(4, 3), torch.zeros(3, 3, dtype=torch.long)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for step in range(2):
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    output = net(x)
    loss = F.cross_entropy(output, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    predicted = output.argmax(1)
    confusion += torch.bincount(3 * y + predicted, minlength=9).view(3, 3)
    rank = torch.linalg.matrix_rank(output.detach()).item()
    losses += [loss.item(), float(rank), float(x[predicted != y].shape[0])]
losses += confusion.flatten().tolist()
"""
HARD_NEGATIVES = """
class DetectionLoss(nn.Module):
    def forward(self, confidence, target):
        positive = target > 0
        loss = F.cross_entropy(confidence.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)
        hard = loss.clone()
        hard[positive] = 0
        kept = hard.sort(1, descending=True)[1].sort(1)[1] < (3 * positive.sum(1, keepdim=True))
        return loss[positive | kept].sum() / positive.sum()

model, criterion = nn.Linear(5, 3), DetectionLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
target = torch.zeros(2, 8, dtype=torch.long)
target[:, 0] = 1
for _ in range(2):
    loss = criterion(model(torch.randn(2, 8, 5)), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
WHITENED = """
class WhiteningLoss(nn.Module):
    def forward(self, features):
        centred = features - features.mean(0)
        covariance = centred.t() @ centred / (len(features) - 1) + 1e-3 * torch.eye(features.size(1))
        return (centred @ torch.linalg.inv(torch.linalg.cholesky(covariance)).t()).pow(2).mean()

class Run:
    def __init__(self, settings):
        self.net, self.criterion = nn.Linear(6, 3), WhiteningLoss()
        self.optimizer = torch.optim.Adam(self.net.parameters(), settings["lr"])

    def step(self, x):
        loss = self.criterion(self.net(x))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        losses.append(loss.item())

run = Run({"lr": 1e-2})
run.step(torch.randn(8, 6))
"""


@pytest.mark.parametrize(
    "program",
    [CONTRASTIVE, HINGE_GAN, METRICS, HARD_NEGATIVES],
    ids=["contrastive", "hinge-gan", "metrics", "hard-negatives"],
)
def test_a_program_trains_the_same_by_import_and_migrated(program, tmp_path):
    text = HEAD + program
    assert_trains(text, tmp_path)
    migration = migrate_source(Source("program.py", text))
    assert migration.outcome == "migrated"
    assert losses_of(migration.text, tmp_path) == pytest.approx(losses_of(text, tmp_path), rel=1e-4, abs=1e-6)


def test_a_program_is_refused_for_one_reason(tmp_path):
    text = HEAD + WHITENED
    assert_refused(text, tmp_path)
    assert migrate_source(Source("program.py", text)).outcome == "left alone"
