"""Checkpoints hold plain tensors under plain names, and a resumed run is the uninterrupted one."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import torch
from ignite.engine import Events
from ignite.handlers import Checkpoint, DiskSaver
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import convert_optimizer_state
from ignite_ipu.checkpoints import CheckpointSaver, resume_from
from ignite_ipu.handlers import Recovery
from ignite_ipu.selftest.bench import Bench, Pair, adam, agree, batches, expect, joined, network, train
from ignite_ipu.selftest.promises import needs

PAGE = "checkpoints.md"

# Run where neither PopTorch nor this library can be imported; prints the sums of the tensors in each file.
_READER = """
import json, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("poptorch", "ignite_ipu", "popart"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nowhere())
import torch

sums = {}
for path, weights_only in json.loads(sys.argv[1]).items():
    model = torch.load(path, weights_only=weights_only)["model"]
    weights = model if isinstance(model, dict) else model.state_dict()
    for name, value in weights.items():
        assert type(value) in (torch.Tensor, torch.nn.Parameter), (path, name, type(value))
    sums[path] = {name: value.double().sum().item() for name, value in weights.items()}
print(json.dumps(sums))
"""


def _normalised() -> Any:
    return network(lambda: nn.BatchNorm1d(8))


def load_anywhere(bench: Bench) -> None:
    """Checkpoints load with weights_only=True, and models saved whole load, where there is no PopTorch."""
    pair = bench.pair(model=_normalised)
    objects = {"model": pair.model, "optimizer": pair.optimizer, "trainer": pair.trainer}
    saver = Checkpoint(objects, DiskSaver(str(bench.folder), require_empty=False))
    pair.trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
    pair.run(batches())
    torch.save({"model": pair.model}, bench.folder / "whole.pt")
    # Each with whether `weights_only` is demanded.
    files = {str(saver.last_checkpoint): True, str(bench.folder / "whole.pt"): False}
    command = [sys.executable, "-c", _READER, json.dumps(files)]
    # Where this package is not found, PyTorch could not load it as a back end either.
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    expect(ran.returncode == 0, f"not all files load without PopTorch: {ran.stderr.strip()}")
    expected = {name: value.double().sum().item() for name, value in pair.reference.state_dict().items()}
    for name, sums in json.loads(ran.stdout).items():
        agree(sums, expected, f"sums of the weights in {Path(name).name}")


def plain_tensors(bench: Bench) -> None:
    """The tensors of a state dictionary are plain ones, buffers included."""
    pair = bench.pair(model=_normalised)
    pair.trainer.run(batches(2))
    state = pair.optimizer.state_dict()["state"]
    tensors = {**pair.model.state_dict(), **{str(number): slots["momentum_buffer"] for number, slots in state.items()}}
    kinds = {name: type(value).__qualname__ for name, value in tensors.items() if type(value) is not torch.Tensor}
    expect(not kinds, f"not plain tensors: {kinds}")


def _interrupted(bench: Bench, event: Any, epochs: int) -> None:
    """Train with checkpoints, resume from the first of them, and end with the same bits."""
    runs: List[Any] = []
    for _ in range(2):
        pair = bench.pair(adam, lambda: network(lambda: nn.Dropout(0.2)), seed=3)
        objects = {"model": pair.model, "optimizer": pair.optimizer, "trainer": pair.trainer}
        torch.manual_seed(1)
        if runs:
            torch.manual_seed(77)
            expect(resume_from(bench.folder, objects) is not None, "there is no checkpoint to go on from")
        saver = Checkpoint(objects, CheckpointSaver(bench.folder), n_saved=None, global_step_transform=lambda *_: 1)
        pair.trainer.add_event_handler(event, saver)
        loader = DataLoader(TensorDataset(*joined(batches(6))[0]), batch_size=8, shuffle=True)
        pair.trainer.run(loader, max_epochs=epochs)
        runs.append(copy.deepcopy((pair.model.state_dict(), pair.optimizer.state_dict()["state"])))
        pair.trainer.ipu.close()
    agree(runs[1], runs[0], "weights and optimizer state", 0, 0)


def resumed_epoch(bench: Bench) -> None:
    """A run that is resumed after an epoch is the uninterrupted one bit by bit, dropout and shuffling included."""
    _interrupted(bench, Events.EPOCH_COMPLETED(once=1), epochs=3)


@needs(page="recovery.md")
def resumed_within_an_epoch(bench: Bench) -> None:
    """A run that is resumed within an epoch goes on with the batch that would have come next, bit by bit."""
    _interrupted(bench, Events.ITERATION_COMPLETED(once=8), epochs=2)


def there_and_back(bench: Bench) -> None:
    """A run goes from the host to IPUs and back, to the weights of an uninterrupted one."""
    data, pair = batches(6), Pair(adam)
    train(pair.model, pair.optimizer, data[:2])
    trainer = bench.trainer(pair.model, pair.optimizer)
    trainer.run(data[2:4])
    trainer.ipu.close()
    train(pair.model, pair.optimizer, data[4:])
    pair.train(data)
    pair.compare(state=True)


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x), y)


def converted_state(bench: Bench) -> None:
    """convert_optimizer_state takes a state of torch's to a hand-written PopTorch loop, and back."""
    data, pair = batches(6), Pair(adam)
    train(pair.model, pair.optimizer, data[:2])
    wrapped = _WithLoss(pair.model)
    on_device = bench.poptorch.optim.Adam(pair.model.parameters(), lr=0.02)
    on_device.load_state_dict(convert_optimizer_state(pair.optimizer.state_dict(), on_device, wrapped))
    executor = bench.training_model(wrapped, bench.options(), on_device)
    for x, y in data[2:]:
        executor(x, y)
    pair.optimizer.load_state_dict(convert_optimizer_state(on_device.state_dict(), on_device, wrapped))
    pair.train(data)
    pair.compare(state=True)


@needs(page="recovery.md")
def recovery_without_a_seed(bench: Bench) -> None:
    """Recovery without a seed copies and saves from the first call on, and resumes."""
    pair = bench.pair()
    Recovery(bench.folder, every=1).attach(pair.trainer)
    pair.check()
