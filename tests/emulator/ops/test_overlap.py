"""Transfers that overlap with compute: the tensors that may be marked, and the options for it."""

from __future__ import annotations

import contextlib
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
    made.setExecutionStrategy(changes.get("strategy", poptorch.ShardedExecution()))
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
        (lambda x: into(x) * 2, {"mode": poptorch.OutputMode.Final}, "of inputs too, needs the output mode All or Sum"),
    ],
)
def test_what_does_not_compile(function, changes, message, infer):
    with pytest.raises(poptorch.Error, match=message):
        infer(function, X, options=options(**changes))


def test_an_output_is_returned_marked_or_as_it_was(infer):
    """Not both, in whatever structure; other operators may use both."""

    def both(x):
        y = x * 2
        return {"raw": y, "others": [out_of(y)]}

    def one(x):
        y = x * 2
        marked = out_of(y)
        return marked, marked + 1, y + 2

    def marked_twice(x):
        y = x * 2
        return out_of(y), out_of(y)

    for function in (both, marked_twice):
        with pytest.raises(poptorch.Error) as raised:
            infer(function, X, options=options())
        assert raised.value.message.startswith("The output mul is returned twice")
    for found, expected in zip(infer(one, X, options=options()), (X * 2, X * 2 + 1, X * 2 + 2)):
        assert torch.equal(found, expected)


def test_the_default_strategy_does_not_overlap(infer):
    """On one IPU either; sharded execution does, on several too."""
    for function in (lambda x: into(x) + 1, two_blocks):
        with pytest.raises(poptorch.Error, match=r"not supported with poptorch\.PipelinedExecution.*ShardedExecution"):
            infer(function, X, options=options(strategy=poptorch.PipelinedExecution()).deviceIterations(2))
    assert torch.equal(infer(two_blocks, X, options=options()), (X + 1) * 2)


def test_what_is_wrong_is_said_in_turn(infer):
    """Misuse of a tensor first, then the strategy, the tiles and the output mode."""
    chosen = poptorch.Options().outputMode(poptorch.OutputMode.Final)
    with pytest.raises(poptorch.Error, match="returned twice"):
        infer(lambda x: [out_of(into(x) * 2)] * 2, X, options=chosen.clone())
    with pytest.raises(poptorch.Error, match="PipelinedExecution"):
        infer(lambda x: out_of(into(x) * 2), X, options=chosen.clone())
    chosen.setExecutionStrategy(poptorch.ShardedExecution())
    with pytest.raises(poptorch.Error, match="No IO tiles allocated"):
        infer(lambda x: out_of(into(x) * 2), X, options=chosen.clone())
    chosen.TensorLocations.numIOTiles(32)
    with pytest.raises(poptorch.Error, match="output mode All or Sum"):
        infer(lambda x: out_of(into(x) * 2), X, options=chosen.clone())


def test_an_overlapped_input_wants_another_output_mode_in_training():
    """Whose default is `Final`."""

    class Net(torch.nn.Linear):
        def forward(self, x):
            return torch.nn.functional.mse_loss(super().forward(into(x)), torch.zeros(2, 3))

    for mode, accepted in ((poptorch.OutputMode.Default, False), (poptorch.OutputMode.Sum, True)):
        net = Net(3, 3)
        model = poptorch.trainingModel(net, options(mode=mode), torch.optim.SGD(net.parameters(), lr=0.1))
        with contextlib.nullcontext() if accepted else pytest.raises(poptorch.Error, match="and it is Final"):
            model(X)


def test_the_mode_is_an_overlap_mode():
    with pytest.raises(AssertionError, match="OverlapMode"):
        into(X, "overlap")
