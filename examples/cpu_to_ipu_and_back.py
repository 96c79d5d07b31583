"""A run that moves from the CPU to an IPU and back, through checkpoint files, and ends where the whole run ends."""

from __future__ import annotations

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_trainer

images, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
loader = DataLoader(digits, batch_size=32, drop_last=True)


def train(create_trainer, until_epoch, file=None):
    """Train until the end of an epoch, from a checkpoint if there is one, and return the model and a new checkpoint."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    trainer = create_trainer(model, optimizer, nn.CrossEntropyLoss())
    handler = Checkpoint(
        {"model": model, "optimizer": optimizer}, DiskSaver("runs", create_dir=True, require_empty=False)
    )
    trainer.add_event_handler(Events.COMPLETED, handler)
    if file is not None:
        Checkpoint.load_objects({"model": model, "optimizer": optimizer}, torch.load(file, weights_only=True))
    trainer.run(loader, max_epochs=until_epoch)
    return model, handler.last_checkpoint


whole, _ = train(create_supervised_trainer, 3)
_, file = train(create_supervised_trainer, 1)
_, file = train(create_ipu_trainer, 1, file)
moved, _ = train(create_supervised_trainer, 1, file)

difference = max((a - b).abs().max().item() for a, b in zip(whole.parameters(), moved.parameters()))
print(f"largest difference of a weight after three epochs: {difference:.1e}")
assert difference < 1e-4
