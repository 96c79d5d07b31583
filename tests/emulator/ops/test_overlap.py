"""Transfers that overlap with compute: what may be marked, and under which options."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator import OverlapMode as Mode

X = torch.randn(2, 3)
LOOP = Mode.OverlapAccumulationLoop


def options(**changes: Any) -> poptorch.Options:
    made = poptorch.Options()
    made.TensorLocations.numIOTiles(32)
    made.outputMode(changes.get("mode", poptorch.OutputMode.All))
    return made


def into(x: Any, mode: Mode = LOOP) -> Any:
    return poptorch.set_overlap_for_input(x, mode)


def out_of(x: Any, mode: Mode = LOOP) -> Any:
    return poptorch.set_overlap_for_output(x, mode)


def test_values_pass_unchanged(infer):
    assert torch.equal(infer(lambda x: out_of(into(x) * 2), X, options=options()), X * 2)
    assert into(X) is X


def test_structures_keep_what_is_no_tensor(infer):
    """Tensors in lists, tuples and dicts are marked; other leaves stay."""
    outputs = infer(lambda x: out_of({"a": [into(x) + 1, "text"], "b": None}), X, options=options())
    assert torch.equal(outputs["a"][0], X + 1) and outputs["a"][1] == "text" and outputs["b"] is None


def test_no_overlap_needs_no_tiles(infer):
    assert torch.equal(infer(lambda x: out_of(into(x, Mode.NoOverlap) + 1, Mode.NoOverlap), X), X + 1)


def two_blocks(x: torch.Tensor) -> torch.Tensor:
    with poptorch.Block("0", ipu_id=0):
        x = into(x) + 1
    with poptorch.Block("1", ipu_id=1):
        return x * 2


@pytest.mark.parametrize(
    ("function", "changes", "message"),
    [
        (lambda x: into(x + 1), {}, "not a tensor input to the model"),
        (lambda x: into(x) + x, {}, "must be the only op applied"),
        (lambda x: out_of(x * 2) + 1, {}, "not a tensor output"),
        (lambda x: [out_of(x * 2)] * 2, {}, "returned twice"),
        (lambda x: out_of(x * 2), {"mode": poptorch.OutputMode.Final}, "output mode All or Sum"),
    ],
)
def test_what_does_not_compile(function, changes, message, infer):
    with pytest.raises(poptorch.Error, match=message):
        infer(function, X, options=options(**changes))


def test_tiles_are_needed(infer):
    with pytest.raises(poptorch.Error, match="No IO tiles allocated"):
        infer(lambda x: into(x) + 1, X)


def test_not_with_a_pipeline(infer):
    """Sharded execution allows it."""
    with pytest.raises(poptorch.Error, match="Overlapped IO is not supported"):
        infer(two_blocks, X, options=options().deviceIterations(2))
    sharded = options().setExecutionStrategy(poptorch.ShardedExecution())
    assert torch.equal(infer(two_blocks, X, options=sharded), (X + 1) * 2)


def test_the_mode_is_an_overlap_mode():
    with pytest.raises(AssertionError, match="OverlapMode"):
        into(X, "overlap")
