"""Outputs that come back from a call: their modes, and the targets that belong to the predictions."""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import create_ipu_averages_evaluator
from ignite_ipu.selftest.bench import Bench, agree, batches, joined, network
from ignite_ipu.selftest.promises import needs

PAGE = "concepts.md"


def _compare(bench: Bench, which: Sequence[int], **settings: Any) -> None:
    """Compare predictions and targets of some micro-batches of one call with an update for each of four."""
    pair = bench.pair(device_iterations=4, output_transform=lambda x, y, y_pred, loss: (y_pred, y), **settings)
    predictions, targets = pair.trainer.run(joined(batches())).output
    native = []
    for x, y in batches():
        native.append((pair.reference(x).detach(), y))
        pair.train([(x, y)])
    agree(predictions, torch.cat([native[number][0] for number in which]), "predictions")
    agree(targets, torch.cat([native[number][1] for number in which]), "targets")


def all_of_them(bench: Bench) -> None:
    """An output_transform that looks at predictions gets those of all micro-batches, with their targets."""
    _compare(bench, range(4))


def final(bench: Bench) -> None:
    """OutputMode.Final brings back the last micro-batch, with its targets."""
    _compare(bench, [3], config={"output_mode": "Final"})


@needs(page="metrics.md")
def every_n(bench: Bench) -> None:
    """OutputMode.EveryN brings back one micro-batch in N, with their targets."""
    _compare(bench, [1, 3], options=bench.options().outputMode(bench.poptorch.OutputMode.EveryN, 2))


@needs(page="metrics.md")
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
