"""Re-identification: identities sampled in pairs, a softmax loss with smoothed labels and the hardest triplets of a batch."""

import copy
import json
import random
from collections import defaultdict

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.sampler import Sampler

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
use_gpu = torch.cuda.is_available()


class RandomIdentitySampler(Sampler):
    """Samples N identities, then K instances of each, so the batch size is N*K."""

    def __init__(self, labels, batch_size, num_instances):
        self.batch_size, self.num_instances = batch_size, num_instances
        self.index_dic = defaultdict(list)
        for index, pid in enumerate(labels):
            self.index_dic[pid].append(index)
        self.pids = list(self.index_dic.keys())

    def __iter__(self):
        batch_idxs_dict = defaultdict(list)
        for pid in self.pids:
            idxs = copy.deepcopy(self.index_dic[pid])
            random.shuffle(idxs)
            for start in range(0, len(idxs) - self.num_instances + 1, self.num_instances):
                batch_idxs_dict[pid].append(idxs[start : start + self.num_instances])
        final_idxs, avai_pids = [], copy.deepcopy(self.pids)
        while len(avai_pids) >= self.batch_size // self.num_instances:
            for pid in random.sample(avai_pids, self.batch_size // self.num_instances):
                final_idxs.extend(batch_idxs_dict[pid].pop(0))
                if len(batch_idxs_dict[pid]) == 0:
                    avai_pids.remove(pid)
        return iter(final_idxs)

    def __len__(self):
        return 320


class CrossEntropyLabelSmooth(nn.Module):
    def __init__(self, num_classes, epsilon=0.1):
        super().__init__()
        self.num_classes, self.epsilon = num_classes, epsilon
        self.logsoftmax = nn.LogSoftmax(dim=1)

    def forward(self, inputs, targets):
        log_probs = self.logsoftmax(inputs)
        targets = torch.zeros_like(log_probs).scatter_(1, targets.unsqueeze(1), 1)
        targets = (1 - self.epsilon) * targets + self.epsilon / self.num_classes
        return (-targets * log_probs).mean(0).sum()


class TripletLoss(nn.Module):
    """Triplet loss with hard positive/negative mining."""

    def __init__(self, margin=0.3):
        super().__init__()
        self.ranking_loss = nn.MarginRankingLoss(margin=margin)

    def forward(self, inputs, targets):
        n = inputs.size(0)
        dist = torch.pow(inputs, 2).sum(dim=1, keepdim=True).expand(n, n)
        dist = dist + dist.t()
        dist = dist - 2 * torch.matmul(inputs, inputs.t())
        dist = dist.clamp(min=1e-12).sqrt()
        mask = targets.expand(n, n).eq(targets.expand(n, n).t()).float()
        dist_ap = (dist * mask).max(dim=1)[0]
        dist_an = (dist + 1e4 * mask).min(dim=1)[0]
        y = torch.ones_like(dist_an)
        return self.ranking_loss(dist_an, dist_ap, y)


class Baseline(nn.Module):
    def __init__(self, num_classes, feat_dim=16):
        super().__init__()
        self.base = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, feat_dim))
        self.bottleneck = nn.BatchNorm1d(feat_dim)
        self.bottleneck.bias.requires_grad_(False)
        self.classifier = nn.Linear(feat_dim, num_classes, bias=False)

    def forward(self, x):
        global_feat = self.base(x)
        feat = self.bottleneck(global_feat)
        if self.training:
            return self.classifier(feat), global_feat
        return feat


digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
sampler = RandomIdentitySampler(digits.target[:400], 32, 4)
trainloader = DataLoader(TensorDataset(images[:400], labels[:400]), batch_size=32, sampler=sampler, drop_last=True)
model = Baseline(10)
if use_gpu:
    model = model.cuda()
criterion_xent = CrossEntropyLabelSmooth(num_classes=10)
criterion_triplet = TripletLoss()
params = []
for key, value in model.named_parameters():
    if not value.requires_grad:
        continue
    lr, weight_decay = 0.003, 5e-4
    if "bias" in key:
        lr, weight_decay = lr * 2, 0
    params += [{"params": [value], "lr": lr, "weight_decay": weight_decay}]
optimizer = torch.optim.Adam(params)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1], gamma=0.1)
losses = []
for epoch in range(2):
    model.train()
    for imgs, pids in trainloader:
        if use_gpu:
            imgs, pids = imgs.cuda(), pids.cuda()
        score, feat = model(imgs)
        loss = criterion_xent(score, pids) + criterion_triplet(feat, pids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        acc = (score.max(1)[1] == pids).float().mean()
    scheduler.step()

model.eval()
with torch.no_grad():
    query, gallery = model(images[400:464]), model(images[464:528])
    distmat = torch.cdist(query, gallery)
    rank1 = (labels[464:528][distmat.argmin(1)] == labels[400:464]).float().mean()
print("RESULT", json.dumps({"losses": losses[:20], "accuracy": acc.item(), "rank1": rank1.item()}))
