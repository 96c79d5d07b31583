"""Segment generated discs with engine classes in the manner of MONAI: dictionaries in, dictionaries out."""

from __future__ import annotations

import sys

import torch
from ignite.engine import Engine, Events
from ignite.metrics import Metric
from torch import nn
from torch.utils.data import DataLoader, Dataset
from ignite_ipu import host_device, ipu_prepare


class Discs(Dataset):
    """Noisy images of a disc, with the mask of the disc."""

    def __init__(self, count, size=16):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        row, column = torch.randint(5, self.size - 5, (2,), generator=draw)
        steps = torch.arange(self.size)
        mask = (((steps - row)[:, None] ** 2 + (steps - column) ** 2) <= 16).float()[None]
        return {"image": mask + 0.4 * torch.randn(mask.shape, generator=draw), "label": mask}


class DiceLoss(nn.Module):
    """One minus the Dice coefficient of each image, averaged."""

    def forward(self, logits, masks):
        found = logits.sigmoid()
        overlap = 2 * (found * masks).flatten(1).sum(1)
        return (1 - (overlap + 1) / (found.flatten(1).sum(1) + masks.flatten(1).sum(1) + 1)).mean()


class MeanDice(Metric):
    """The Dice coefficient of the thresholded masks, over all images."""

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, output):
        logits, masks = output
        found = (logits > 0).float()
        dice = 2 * (found * masks).flatten(1).sum(1) / (found + masks).flatten(1).sum(1)
        self.total += dice.sum().item()
        self.count += len(dice)

    def compute(self):
        return self.total / self.count


class SupervisedTrainer(Engine):
    """An engine that has its network, optimizer and loss, and keeps what each iteration computes in a dictionary."""

    def __init__(self, device, network, optimizer, loss_function):
        super().__init__(self._iteration)
        self.device, self.network = device, network.to(device)
        self.optimizer, self.loss_function = optimizer, loss_function

    def _iteration(self, engine, batch):
        images, masks = batch["image"].to(self.device), batch["label"].to(self.device)
        self.network.train()
        self.optimizer.zero_grad()
        predictions = self.network(images)
        loss = self.loss_function(predictions, masks)
        loss.backward()
        self.optimizer.step()
        return {"image": images, "label": masks, "pred": predictions.detach(), "loss": loss.item()}


class SupervisedEvaluator(Engine):
    def __init__(self, device, network):
        super().__init__(self._iteration)
        self.device, self.network = device, network.to(device)

    def _iteration(self, engine, batch):
        self.network.eval()
        with torch.no_grad():
            predictions = self.network(batch["image"].to(self.device))
        return {"label": batch["label"].to(self.device), "pred": predictions}


torch.manual_seed(0)
device = host_device()
network = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.InstanceNorm2d(8, affine=True),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(8, 1, 1),
)
optimizer = ipu_prepare(torch.optim.Adam(network.parameters(), lr=0.01), network, config={"update": "auto"})
trainer = SupervisedTrainer(device, network, optimizer, DiceLoss())
evaluator = SupervisedEvaluator(device, network)
MeanDice(output_transform=lambda output: (output["pred"], output["label"])).attach(evaluator, "dice")
validation = DataLoader(Discs(40), batch_size=20)


@trainer.on(Events.EPOCH_COMPLETED)
def validate():
    evaluator.run(validation)
    dice = evaluator.state.metrics["dice"]
    print(f"epoch {trainer.state.epoch}: loss {trainer.state.output['loss']:.3f}, dice {dice:.3f}")


trainer.run(DataLoader(Discs(160), batch_size=16, shuffle=True), max_epochs=4)
if evaluator.state.metrics["dice"] < 0.85:
    sys.exit("the model has not learnt")
