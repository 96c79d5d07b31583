"""Outputs that come back from a call: their modes, and the targets that belong to the predictions."""

from __future__ import annotations

from typing import Any, List, Tuple

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_averages_evaluator
from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.promise import Promises
from ignite_ipu.selftest.reference import Batch, Pair, agree, batches, joined, network

PROMISES = Promises("outputs", "concepts.md")


def _native(micro_batches: List[Batch]) -> List[torch.Tensor]:
    """Return the predictions of a training run's micro-batches, each with the weights of its update."""
    native = Pair()
    predictions = []
    for x, y in micro_batches:
        predictions.append(native.reference(x).detach())
        native.train([(x, y)])
    return predictions


def _trained(bench: Bench, micro_batches: List[Batch], **settings: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return predictions and targets that come back from one call with an update for every micro-batch."""
    pair = bench.pair(
        device_iterations=len(micro_batches), output_transform=lambda x, y, y_pred, loss: (y_pred, y), **settings
    )
    predictions, targets = pair.trainer.run(joined(micro_batches)).output
    return predictions, targets


@PROMISES.promise()
def all_of_them(bench: Bench) -> None:
    """An output_transform that looks at predictions gets those of all micro-batches, with their targets."""
    data = batches(4)
    predictions, targets = _trained(bench, data)
    agree(predictions, torch.cat(_native(data)), "predictions")
    agree(targets, torch.cat([y for _, y in data]), "targets")


@PROMISES.promise()
def final(bench: Bench) -> None:
    """OutputMode.Final brings back the last micro-batch, with its targets."""
    data = batches(4)
    predictions, targets = _trained(bench, data, config={"output_mode": "Final"})
    agree(predictions, _native(data)[-1], "predictions")
    agree(targets, data[-1][1], "targets")


@PROMISES.promise(page="metrics.md")
def every_n(bench: Bench) -> None:
    """OutputMode.EveryN brings back one micro-batch in N, with their targets."""
    data = batches(4)
    options = bench.options().outputMode(bench.poptorch.OutputMode.EveryN, 2)
    predictions, targets = _trained(bench, data, options=options)
    native = _native(data)
    agree(predictions, torch.cat([native[1], native[3]]), "predictions")
    agree(targets, torch.cat([data[1][1], data[3][1]]), "targets")


@PROMISES.promise(page="metrics.md")
def averages_on_the_device(bench: Bench) -> None:
    """Averages that the device sums up are those over every sample."""
    x, y = joined(batches(9, size=6))[0]
    functions = {
        "accuracy": lambda y_pred, y: (y_pred.argmax(1) == y).float(),
        "loss": lambda y_pred, y: F.cross_entropy(y_pred, y, reduction="none"),
    }
    evaluator = create_ipu_averages_evaluator(network(), functions, device_iterations=2)
    bench.afterwards(evaluator.ipu.close)
    found = evaluator.run(DataLoader(TensorDataset(x, y), batch_size=8)).metrics
    with torch.no_grad():
        scores = network()(x)
    expected = {"accuracy": (scores.argmax(1) == y).float().mean().item(), "loss": F.cross_entropy(scores, y).item()}
    agree(dict(found), expected, "averages")
