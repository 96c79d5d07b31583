"""Train in as many processes as there are, each on IPUs of its own.

python processes.py                                     one process
ignite-ipu launch --instances 2 processes.py            two
ignite-ipu launch --instances 2 --dry-run processes.py  shows what would be run
"""

from __future__ import annotations

import os

import ignite.distributed as idist
import torch
from ignite.engine import Events
from ignite.metrics import Accuracy
from ignite.utils import manual_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer


def train(local_rank):
    manual_seed(0)  # the same weights in every process
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))
    loader = idist.auto_dataloader(digits, batch_size=32, shuffle=True)
    model = idist.auto_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=0.003))
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), device_iterations=4)
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy()})

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        # Every process evaluates its part; the metric adds them up.
        accuracy = evaluator.run(loader).metrics["accuracy"]
        if idist.get_rank() == 0:
            print(f"epoch {trainer.state.epoch}: accuracy {accuracy:.1%} in {idist.get_world_size()} processes")

    trainer.run(loader, max_epochs=5)
    assert evaluator.state.metrics["accuracy"] > 0.9


if __name__ == "__main__":
    with idist.Parallel(backend="gloo" if "RANK" in os.environ else None) as parallel:
        parallel.run(train)
