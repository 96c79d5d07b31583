"""Checkpoints hold plain tensors under plain names, and a resumed run is the uninterrupted one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import convert_optimizer_state
from ignite_ipu.checkpoints import CheckpointSaver, resume_from
from ignite_ipu.handlers import Recovery
from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises
from ignite_ipu.selftest.reference import Pair, adam, agree, batches, expect, joined, network, same_bits, sgd, train

PROMISES = Promises("checkpoints", "checkpoints.md")

# Run where neither PopTorch nor this library can be imported; prints the sums of what it has read from each file.
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


def _read_elsewhere(files: Dict[str, bool]) -> Dict[str, Dict[str, float]]:
    """Return the sums of the weights in files, as a Python without PopTorch reads them.

    Args:
        files: Paths, each with whether `weights_only` is demanded.
    """
    command = [sys.executable, "-c", _READER, json.dumps(files)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    expect(ran.returncode == 0, f"not all files load without PopTorch: {ran.stderr.strip()}")
    read: Dict[str, Dict[str, float]] = json.loads(ran.stdout)
    return read


def _sums(model: nn.Module) -> Dict[str, float]:
    return {name: value.double().sum().item() for name, value in model.state_dict().items()}


def _normalised() -> Any:
    return network(lambda: nn.BatchNorm1d(8))


@PROMISES.promise()
def load_anywhere(bench: Bench) -> None:
    """Checkpoints load with weights_only=True, and models saved whole load, where there is no PopTorch."""
    data = batches(4)
    pair = bench.pair(model=_normalised)
    objects = {"model": pair.model, "optimizer": pair.optimizer, "trainer": pair.trainer}
    saver = Checkpoint(objects, DiskSaver(str(bench.folder), require_empty=False))
    pair.trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
    pair.run(data)
    torch.save({"model": pair.model}, bench.folder / "whole.pt")
    files = {str(saver.last_checkpoint): True, str(bench.folder / "whole.pt"): False}
    for name, sums in _read_elsewhere(files).items():
        agree(sums, _sums(pair.reference), f"sums of the weights in {Path(name).name}")


@PROMISES.promise()
def plain_tensors(bench: Bench) -> None:
    """The tensors of a state dictionary are plain ones, buffers included."""
    model = _normalised()
    optimizer = sgd(model)
    bench.trainer(model, optimizer).run(batches(2))
    state = optimizer.state_dict()["state"]
    tensors = {**model.state_dict(), **{str(number): slots["momentum_buffer"] for number, slots in state.items()}}
    kinds = {name: type(value).__qualname__ for name, value in tensors.items() if type(value) is not torch.Tensor}
    expect(not kinds, f"not plain tensors: {kinds}")


def _objects(bench: Bench) -> Dict[str, Any]:
    torch.manual_seed(1)
    model = network(lambda: nn.Dropout(0.2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return {"model": model, "optimizer": optimizer, "trainer": bench.trainer(model, optimizer, seed=3)}


def _loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*joined(batches())[0]), batch_size=8, shuffle=True)


def _interrupted(bench: Bench, event: Any, epochs: int) -> None:
    """Train with checkpoints, resume from the first of them, and end with the same bits."""
    objects = _objects(bench)
    saver = Checkpoint(objects, CheckpointSaver(bench.folder), n_saved=None, global_step_transform=lambda *_: 1)
    objects["trainer"].add_event_handler(event, saver)
    objects["trainer"].run(_loader(), max_epochs=epochs)
    whole = {name: value.clone() for name, value in objects["model"].state_dict().items()}
    moments = objects["optimizer"].state_dict()["state"]
    objects["trainer"].ipu.close()

    torch.manual_seed(77)
    objects = _objects(bench)
    expect(resume_from(bench.folder, objects) is not None, "")
    objects["trainer"].run(_loader(), max_epochs=epochs)
    same_bits(dict(objects["model"].state_dict()), whole, "weights")
    same_bits(objects["optimizer"].state_dict()["state"], moments, "optimizer state")


@PROMISES.promise()
def resumed_epoch(bench: Bench) -> None:
    """A run that is resumed after an epoch is the uninterrupted one bit by bit, dropout and shuffling included."""
    _interrupted(bench, Events.EPOCH_COMPLETED(once=1), epochs=3)


@PROMISES.promise(page="guarantees.md")
def resumed_within_an_epoch(bench: Bench) -> None:
    """A run that is resumed within an epoch goes on with the batch that would have come next, bit by bit."""
    _interrupted(bench, Events.ITERATION_COMPLETED(once=8), epochs=2)


@PROMISES.promise()
def there_and_back(bench: Bench) -> None:
    """A run goes from the host to IPUs and back, to the weights of an uninterrupted one."""
    data = batches(6)
    pair = Pair(adam)
    loss_fn = nn.CrossEntropyLoss()
    create_supervised_trainer(pair.model, pair.optimizer, loss_fn).run(data[:2])
    trainer = bench.trainer(pair.model, pair.optimizer)
    trainer.run(data[2:4])
    trainer.ipu.close()
    create_supervised_trainer(pair.model, pair.optimizer, loss_fn).run(data[4:])
    pair.train(data)
    pair.compare(state=True)


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x), y)


@PROMISES.promise()
def converted_state(bench: Bench) -> None:
    """convert_optimizer_state takes a state of torch's to a hand-written PopTorch loop, and back."""
    data = batches(6)
    pair = Pair(adam)
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


@PROMISES.promise(page="guarantees.md")
def recovery_without_a_seed(bench: Bench) -> None:
    """Recovery without a seed copies and saves from the first call on, and resumes."""
    data = batches(4)
    pair = bench.pair()
    Recovery(bench.folder, every=1).attach(pair.trainer)
    pair.run(data)
    pair.compare()
