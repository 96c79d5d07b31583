"""A run that goes on in a new process from a checkpoint file is the uninterrupted run, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from ignite.engine import Events
from ignite.handlers import Checkpoint, DiskSaver
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from tests.supervised import task

_ROOT = Path(__file__).parents[2]
EPOCHS = 3


def train(folder, resume_from=None):
    """Train with shuffling on the host and dropout on the device, saving each epoch, and return the weights."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), device_iterations=2, seed=11)
    objects = {"model": model, "optimizer": optimizer, "trainer": trainer}
    saver = DiskSaver(str(folder), create_dir=True, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint(objects, saver, n_saved=None))
    if resume_from is not None:
        Checkpoint.load_objects(objects, torch.load(resume_from, weights_only=True))
    trainer.run(DataLoader(task(), batch_size=4, shuffle=True), max_epochs=EPOCHS)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainer.ipu.close()
    return weights


def test_in_a_new_process(tmp_path):
    whole = train(tmp_path / "whole")
    first = tmp_path / "whole" / "checkpoint_8.pt"
    assert first.exists()
    words = [sys.executable, "-m", "tests.ignite.test_resume", str(tmp_path / "resumed"), str(first)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(words, cwd=_ROOT, env=environment, check=True, timeout=200)
    resumed = torch.load(tmp_path / "resumed" / "weights.pt", weights_only=True)
    assert {name: bool(torch.equal(resumed[name], whole[name])) for name in whole} == dict.fromkeys(whole, True)


if __name__ == "__main__":
    folder, file = sys.argv[1:]
    torch.set_num_threads(1)
    found = train(Path(folder), file)
    torch.save(found, Path(folder) / "weights.pt")
