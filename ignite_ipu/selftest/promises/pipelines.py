"""Models over several IPUs compute and learn as on one."""

from __future__ import annotations

from typing import Any

from torch import nn

from ignite_ipu.selftest.bench import Bench, Pair, agree, batches, expect, joined, network
from ignite_ipu.selftest.promises import needs

PAGE = "pipeline.md"


def _deep() -> Any:
    return network(lambda: nn.Linear(8, 8), nn.Tanh, lambda: nn.Linear(8, 8), nn.Tanh)


def _compare(bench: Bench, accumulation: int, replicas: int = 1, **settings: Any) -> Any:
    """Make two updates on several IPUs and on the host; return model, reference and data."""
    data = batches(2 * accumulation * replicas, size=2)
    pair = bench.pair(model=_deep, gradient_accumulation_steps=accumulation, replication_factor=replicas, **settings)
    pair.check(joined(data, calls=2), data, accumulation=accumulation * replicas, state=True)
    return pair.model, pair.reference, joined(data)[0][0]


@needs(ipus=2)
def two_ipus(bench: Bench) -> None:
    """A pipeline over 2 IPUs trains as one IPU does, with the model's own names in its state dictionary."""
    model, reference, _ = _compare(bench, 4, pipeline=["0", "4"])
    expect(list(model.state_dict()) == list(reference.state_dict()), "the names of the weights have changed")


@needs(ipus=4)
def four_ipus(bench: Bench) -> None:
    """A pipeline over 4 IPUs trains as one IPU does."""
    _compare(bench, 8, pipeline=["0", "2", "4", "6"])


@needs(ipus=4)
def replicated(bench: Bench) -> None:
    """Two replicas of a pipeline over 2 IPUs train as one IPU does."""
    _compare(bench, 4, replicas=2, pipeline=["0", "4"])


@needs(ipus=2)
def sharded(bench: Bench) -> None:
    """Sharded execution over 2 IPUs trains as one IPU does."""
    _compare(bench, 1, pipeline=["0", "4"], config={"execution": "sharded"})


@needs(ipus=2)
def evaluation(bench: Bench) -> None:
    """An evaluator runs the layers where they are trained, with the newest weights."""
    model, reference, x = _compare(bench, 4, pipeline=["0", "4"], config={"share_ipus": True})
    evaluator = bench.evaluator(model, device_iterations=4)
    # A pipeline of two stages needs as many micro-batches in an evaluation, too.
    agree(evaluator.run([(x[:8], x[:8])]).output, reference(x[:8]), "predictions")


@needs(ipus=2)
def blocks_by_hand(bench: Bench) -> None:
    """A model with poptorch.BeginBlock in it trains over 2 IPUs as one IPU does."""
    poptorch = bench.poptorch
    data, pair = batches(8, size=2), Pair(model=_deep)
    poptorch.BeginBlock(pair.model[0], "first", ipu_id=0)
    poptorch.BeginBlock(pair.model[4], "second", ipu_id=1)
    options = bench.options()
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    pair.trainer = bench.trainer(pair.model, pair.optimizer, gradient_accumulation_steps=4, options=options)
    pair.check(joined(data, calls=2), data, accumulation=4)
