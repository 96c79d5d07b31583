"""Blocks, name scopes and attributes, seen in the graph that a trace records."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Callable, List, Optional, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu.emulator.compiler.placement import BlockPlacement
from ignite_ipu.emulator.enums import AutoStage
from ignite_ipu.emulator.errors import Error
from ignite_ipu.emulator.options.strategies import PipelinedExecution, _IExecutionStrategy
from ignite_ipu.emulator.trace import annotations as pt
from ignite_ipu.emulator.trace.capture import Capture


class Step(nn.Module):
    """Adds a constant: one operator."""

    def __init__(self, amount: float) -> None:
        super().__init__()
        self.amount = amount

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.amount


def traced(forward: Callable[[Any], Any], strategy: Optional[_IExecutionStrategy] = None) -> Capture:
    capture = Capture(BlockPlacement(strategy or PipelinedExecution(AutoStage.AutoIncrement)))
    x = capture.add_input("x", torch.ones(2))
    with capture.tracing(training=False):
        forward(x)
    return capture


def nodes(capture: Capture, key: str) -> List[Any]:
    return [node.meta[key] for node in capture.graph.nodes if "site" in node.meta]


def blocks(forward: Callable[[Any], Any], strategy: Optional[_IExecutionStrategy] = None) -> List[Tuple[Any, int]]:
    return [(site.block, site.ipu) for site in nodes(traced(forward, strategy), "site")]


def test_operators_inside_a_block_land_on_its_ipu() -> None:
    def forward(x: Any) -> Any:
        x = x + 1
        with pt.Block("a", ipu_id=2):
            x = x * 2
        with pt.Block("b", ipu_id=0):
            return x * 3

    assert blocks(forward) == [(None, 0), ("a", 2), ("b", 0)]


def test_after_a_block_there_must_be_another() -> None:
    def forward(x: Any) -> Any:
        with pt.Block("a"):
            x = x + 1
        return x + 2

    with pytest.raises(Error, match="No active Block"):
        traced(forward)


def test_a_started_block_stays_open() -> None:
    def forward(x: Any) -> Any:
        pt.Block.start("a", 1)
        x = x + 1
        pt.Block.start(ipu_id=2)
        return (x + 1) * 2

    assert blocks(forward) == [("a", 1), ("0", 2), ("0", 2)]


def test_a_block_takes_a_new_number_on_each_entry() -> None:
    block = pt.Block(ipu_id=0)

    def forward(x: Any) -> Any:
        for _ in range(3):
            with block:
                x = x + 1
        pt.Block.useAutoId()
        with block:
            return x + 1

    assert [block for block, _ in blocks(forward)] == ["0", "1", "2", "0"]


def test_begin_block_returns_the_same_module_and_lasts() -> None:
    first, second = Step(1), Step(2)
    assert pt.BeginBlock(second, "b", 1) is second
    model = nn.Sequential(first, second, Step(3))
    assert blocks(model) == [(None, 0), ("b", 1), ("b", 1)]


def test_a_module_keeps_its_first_number() -> None:
    shared, other = pt.BeginBlock(Step(1)), pt.BeginBlock(Step(2))

    def forward(x: Any) -> Any:
        return shared(other(shared(x)))

    assert [block for block, _ in blocks(forward)] == ["0", "1", "0"]
    assert [block for block, _ in blocks(forward)] == ["0", "1", "0"]


def test_a_callable_that_is_no_module_is_wrapped() -> None:
    def double(x: Any, times: int = 2) -> Any:
        return x * times

    wrapped = pt.BeginBlock(double, "f", 1)
    assert isinstance(wrapped, pt.LegacyBeginBlockFn)
    assert blocks(lambda x: wrapped(x, times=3)) == [("f", 1)]
    assert wrapped(4) == 8


def test_a_module_is_in_one_block_and_nothing_else_can_be() -> None:
    layer = pt.BeginBlock(Step(1), "a")
    with pytest.raises(Error, match="already been assigned to a block"):
        pt.BeginBlock(layer, "b")
    with pytest.raises(Error, match="module is not an instance of"):
        pt.BeginBlock(3)


def test_blocks_can_be_removed_from_a_whole_model() -> None:
    called: List[str] = []
    model = nn.Sequential(pt.BeginBlock(Step(1), "a", 1), nn.Sequential(pt.BeginBlock(Step(2), "b", 2)))
    model[0].register_forward_pre_hook(lambda module, inputs: called.append("mine"))
    for _ in range(2):
        pt.removeBlocks(model)
        assert blocks(model) == [(None, 0), (None, 0)]
    assert called == ["mine", "mine"]
    assert pt.BeginBlock(model[0], "again") is model[0]
    with pytest.raises(AssertionError, match=r"removeBlocks takes a torch\.nn\.Module"):
        pt.removeBlocks(lambda x: x)  # type: ignore[arg-type]


def test_a_decorated_function_runs_in_a_block() -> None:
    @pt.BlockFunction("f", ipu_id=3)
    def work(x: Any, *, by: int) -> Any:
        return x + by

    assert blocks(lambda x: work(x, by=2)) == [("f", 3)]
    assert work(1, by=2) == 3
    assert list(inspect.signature(work).parameters) == ["args", "kwargs"]


def test_outside_a_trace_blocks_do_nothing() -> None:
    model = nn.Sequential(pt.BeginBlock(Step(1), ipu_id=5), Step(2))
    pt.Block.useAutoId()
    pt.Block.start("a", "not even an IPU")  # type: ignore[arg-type]
    with pt.Block("a", 7):
        assert torch.equal(model(torch.zeros(1)), torch.tensor([3.0]))
    assert pt.module_repr(model).count("user_id=None") == 1


def test_a_copy_keeps_its_block_and_state_dicts_know_nothing_of_it() -> None:
    layer = pt.BeginBlock(nn.Linear(2, 2), "a", 1)
    twin = copy.deepcopy(layer)
    with pytest.raises(Error, match="already been assigned"):
        pt.BeginBlock(twin)
    pt.removeBlocks(twin)
    assert "BeginBlock" in pt.module_repr(layer)
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_name_scopes_nest() -> None:
    def forward(x: Any) -> Any:
        with pt.NameScope("outer"):
            x = x + 1
            with pt.NameScope("inner"):
                x = x + 2
        return x + 3

    assert nodes(traced(forward), "scope") == ["outer", "outer/inner", ""]


def test_a_scope_is_named_by_a_string() -> None:
    with pytest.raises(AssertionError, match="must be a string"):
        pt.NameScope(3)  # type: ignore[arg-type]
    assert pt.NameScope("a").name == "a"


def test_attributes_change_nothing() -> None:
    def forward(x: Any) -> Any:
        with pt.Attribute(memory={"proportion": 0.5}), pt.Attribute(tiles={"io": 1}):
            return x + 1

    assert len(nodes(traced(forward), "scope")) == 1
    with pytest.raises(AssertionError, match="takes a dict for each name"):
        pt.Attribute(memory=0.5)


def test_the_text_of_a_module_shows_its_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.ModuleList([nn.ReLU(), nn.ReLU()]))
    plain = repr(model)
    pt.BeginBlock(model, "whole", 0)
    pt.BeginBlock(model[1][1], ipu_id=1)
    assert pt.module_repr(model).splitlines() == [
        "BeginBlock(user_id=whole, ipu_id=0) Sequential(",
        "  (0): Linear(in_features=1, out_features=2, bias=True)",
        "  (1): ModuleList(",
        "    (0): ReLU()",
        "    (1): BeginBlock(user_id=None, ipu_id=1) ReLU()",
        "  )",
        ")",
    ]
    # The (0-1) that PyTorch draws for equal neighbours is back, so nothing was left behind.
    assert repr(model) == plain
    pt.print(model)
    pt.print([1, "two"])
    assert capsys.readouterr().out == pt.module_repr(model) + "\n[1, 'two']\n"
