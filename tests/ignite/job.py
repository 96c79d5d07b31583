"""A training job for one process or several: the results of its first process, as JSON in the file given as argument.

With a second argument, the process of rank 1 dies there in the second epoch unless that file exists, which it makes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import ignite.distributed as idist
import torch
from ignite.engine import Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Accuracy, Loss
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import TensorDataset

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer


def train(local_rank, result, accident):
    manual_seed(3)
    x = torch.randn(48, 4)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    loader = idist.auto_dataloader(data, batch_size=8, shuffle=False)
    model = idist.auto_model(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=0.05))
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), device_iterations=2)
    evaluator = create_ipu_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())})
    objects = {"model": getattr(model, "module", model), "optimizer": optimizer, "trainer": trainer}
    folder = Path(result).with_suffix("")
    resumed_from = 0
    if list(folder.glob("*.pt")):
        Checkpoint.load_objects(objects, max(folder.glob("*.pt"), key=os.path.getmtime))
        resumed_from = trainer.state.epoch
    idist.barrier()
    if idist.get_rank() == 0:
        saver = DiskSaver(folder, create_dir=True, require_empty=False)
        trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(objects, saver, n_saved=1))

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        evaluator.run(loader)

    @trainer.on(Events.EPOCH_STARTED(once=2))
    def have_an_accident():
        if accident and idist.get_rank() == 1 and not os.path.exists(accident):
            Path(accident).touch()
            os._exit(7)

    trainer.run(loader, max_epochs=3)
    record = {
        "world": idist.get_world_size(),
        "metrics": evaluator.state.metrics,
        "iterations": trainer.state.iteration,
        "resumed_from": resumed_from,
        "loss": idist.all_reduce(trainer.state.output) / idist.get_world_size(),
        "weights": {name: tensor.tolist() for name, tensor in objects["model"].state_dict().items()},
    }
    if idist.get_rank() == 0:
        Path(result).write_text(json.dumps(record))


if __name__ == "__main__":
    result, accident = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    with idist.Parallel(backend="gloo" if "RANK" in os.environ else None) as parallel:
        parallel.run(train, result, accident)
