"""Train a CNN on scikit-learn's handwritten digits with accelerate: accumulation, clipping, a schedule, checkpoints."""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--lr", type=float, default=4e-3)
parser.add_argument("--output", default="accelerate-digits-output", help="where the last state goes")
parser.add_argument("--resume", help="state to continue from")
args = parser.parse_args()

accelerator = Accelerator(gradient_accumulation_steps=2)
accelerator.init_trackers("digits")
set_seed(42)

images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels))
train_set, test_set = random_split(digits, [1536, 261], torch.Generator().manual_seed(0))
train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True, drop_last=True)
test_loader = DataLoader(test_set, batch_size=args.batch_size)

model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Dropout(0.3),
    nn.Linear(64 * 4 * 4, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
updates = args.epochs * (len(train_loader) // accelerator.gradient_accumulation_steps)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=updates + 1)
model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, test_loader, scheduler
)

first_epoch = 0
if args.resume:
    accelerator.load_state(args.resume)
    first_epoch = scheduler.scheduler.last_epoch * accelerator.gradient_accumulation_steps // len(train_loader)

accuracy = 0.0
for epoch in range(first_epoch, args.epochs):
    model.train()
    total_loss = 0
    for x, y in train_loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            total_loss += loss.detach().float()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    model.eval()
    right = samples = 0
    for x, y in test_loader:
        with torch.no_grad():
            predictions = model(x).argmax(dim=-1)
        predictions, targets = accelerator.gather_for_metrics((predictions, y))
        right += (predictions == targets).sum().item()
        samples += len(targets)
    accuracy = right / samples
    accelerator.print(
        f"epoch {epoch + 1:2d}: loss {total_loss.item() / len(train_loader):.3f}, test accuracy {accuracy:.1%}"
    )
    accelerator.save_state(args.output)

accelerator.end_training()
if accuracy < (0.96 if args.epochs >= 10 else 0.8):
    sys.exit("the model has not learnt")
