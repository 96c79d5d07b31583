"""Batches taken apart for the device, put together inside the model, and compared with the compiled one."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import backend, create_ipu_trainer, ipu_evaluate_batch, ipu_train_batch
from ignite_ipu.errors import BatchError
from ignite_ipu.program.layout import BatchLayout

Point = namedtuple("Point", "x y")


def layout_of(x: Any, micro_batches: int = 2) -> BatchLayout:
    return BatchLayout.of(["x"], [x], micro_batches)[0]


def through_the_device(x: Any, micro_batches: int = 2) -> Any:
    """Take `x` apart, cut each leaf as the device does, and put the first micro-batch together."""
    layout, leaves = BatchLayout.of(["x"], [x], micro_batches)
    cut = [leaf[: len(leaf) // micro_batches] if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    return layout.rebuild(cut)[0]


def test_structure_survives() -> None:
    """Nested tuples, lists, dicts and named tuples arrive in the model as they were, with the micro-batch's rows."""
    x = {"a": (torch.arange(4), [Point(torch.ones(4, 2), None)]), "mode": "fast", "flag": True}
    seen = through_the_device(x)
    assert seen["a"][0].tolist() == [0, 1]
    assert isinstance(seen["a"][1][0], Point) and seen["a"][1][0].x.shape == (2, 2) and seen["a"][1][0].y is None
    assert seen["mode"] == "fast" and seen["flag"] is True


def test_ordered_dicts_and_foreign_mappings() -> None:
    """Mappings of other classes, such as a tokenizer's result, arrive as they are."""
    from collections import UserDict

    seen = through_the_device([OrderedDict(a=torch.zeros(2)), UserDict(b=torch.zeros(2))])
    assert type(seen[0]) is OrderedDict and type(seen[1]) is UserDict


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(3, torch.int32), (0.5, torch.float32), (np.float32(0.5), torch.float32), (np.int64(3), torch.int32)],
)
def test_numbers_travel_as_tensors(value: Any, dtype: torch.dtype) -> None:
    """A number reaches the model as a 0-dimensional tensor, and may change from call to call."""
    seen = through_the_device([torch.zeros(2), value])
    assert seen[1].shape == () and seen[1].dtype == dtype and seen[1].item() == value
    layout_of([torch.zeros(2), value]).check(layout_of([torch.zeros(2), value + 1]))


def test_0_dimensional_tensors_travel_like_numbers() -> None:
    """PopTorch takes them for one micro-batch only; here they work for any number."""
    assert through_the_device([torch.zeros(6), torch.tensor(2.5)], micro_batches=6)[1].item() == 2.5


def test_equal_layouts_pass() -> None:
    """The check of the usual case is silent."""
    batch = (torch.zeros(4, 2), {"y": torch.zeros(4)}, None, "s")
    layout_of(batch).check(layout_of(batch))


@pytest.mark.parametrize(
    ("compiled", "given", "message"),
    [
        (torch.zeros(4), torch.zeros(6), r"x is now a torch.float32 tensor of shape \(6,\).*\(4,\)"),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), r"x is now a torch.int64 tensor"),
        ([torch.zeros(4), "a"], [torch.zeros(4), "b"], r"x\[1\] is now 'b'.*compiled with 'a'"),
        ([torch.zeros(4), True], [torch.zeros(4), False], r"x\[1\] is now False"),
        ({"a": torch.zeros(4)}, {"b": torch.zeros(4)}, r"x now has the keys \['b'\].*\['a'\]"),
        ([torch.zeros(4)], [torch.zeros(4)] * 2, r"x now has 2 items.*compiled for 1"),
        (
            {"a": {"b": None}, "t": torch.zeros(2)},
            {"a": {"b": torch.zeros(2)}, "t": torch.zeros(2)},
            r"x\['a'\]\['b'\]",
        ),
        (Point(torch.zeros(4), 1), (torch.zeros(4), 1), r"x is now a tuple.*Point"),
        ([torch.zeros(2), 1], [torch.zeros(2), 1.5], r"x\[1\] is now a torch.float32 tensor"),
    ],
)
def test_differences_are_named(compiled: Any, given: Any, message: str) -> None:
    """The first difference is reported with its place, both sides, and the way out."""
    with pytest.raises(BatchError, match=message):
        layout_of(compiled).check(layout_of(given))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([torch.zeros(4), torch.zeros(7, 3)], r"x\[1\] has shape \(7, 3\); its 7 rows do not divide into the 2 micro"),
        (torch.zeros(0, 2), r"x has shape \(0, 2\); a compiled model takes no empty tensors"),
        (torch.zeros(2, dtype=torch.bfloat16), r"x has type torch.bfloat16"),
        ({"a": np.zeros((2, 2))}, r"x\['a'\] is a numpy array of shape \(2, 2\)"),
        ([2**31], r"x\[0\] is 2147483648, which does not fit"),
    ],
)
def test_what_no_device_takes_is_refused(x: Any, message: str) -> None:
    """Rows that do not divide, empty tensors and unknown types are refused before anything is compiled."""
    with pytest.raises(BatchError, match=message):
        layout_of(x)


def test_registered_types_go_to_poptorch_as_they_are() -> None:
    """An object with tensors deep in it is handed over whole, for PopTorch's custom parsers."""
    graph = SimpleNamespace(held=SimpleNamespace(nodes=torch.zeros(2)))
    _, leaves = BatchLayout.of(["x"], [(graph, torch.zeros(2))], 2)
    assert leaves[0] is graph


class Settings:
    """Has values in several places."""

    inherited = 1.0

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.inner = [SimpleNamespace(more={"scale": scale})]

    def scaled(self) -> float:
        return self.scale


def test_objects_are_part_of_the_program_with_what_they_hold() -> None:
    """Another object that holds the same will do, and one that holds something else is named."""
    compiled, x = layout_of([Settings(1.0), torch.zeros(2)]), torch.zeros(2)
    compiled.check(layout_of([Settings(1.0), x]))
    with pytest.raises(BatchError, match=r"x\[0\], a Settings, now holds other values .*: scale, inner\."):
        compiled.check(layout_of([Settings(2.0), x]))
    settings = Settings(1.0)
    compiled = layout_of([settings, x])
    settings.inner[0].more["scale"] = 2.0
    with pytest.raises(BatchError, match=r"compiled with: inner\. An object is part of the compiled program"):
        compiled.check(layout_of([settings, x]))
    for before, after in (
        (partial(max, 1), partial(max, 2)),
        ({1}, {2}),
        (deque([1]), deque([2])),
        (Path("a"), Path("b")),
    ):
        with pytest.raises(BatchError, match=r"x\[0\], a \w+, now holds other values than .* compiled with(: args)?\."):
            layout_of([before, x]).check(layout_of([after, x]))
    for make in (lambda: partial(max, 1), lambda: Settings(1.0).scaled, lambda: {1, (2, 3)}):
        layout_of([make(), x]).check(layout_of([make(), x]))
    with pytest.raises(BatchError, match=r"x\[0\] is now a SimpleNamespace, but .* for a Settings"):
        compiled.check(layout_of([SimpleNamespace(), x]))


class Scaled(nn.Module):
    """Scores, times an object's factor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, settings: Any) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x + getattr(settings, "nodes", 0)) * settings.scale
        return scores


def loss_of(scores: torch.Tensor, target: Any) -> torch.Tensor:
    return F.cross_entropy(scores, target[1]) * target[0].scale


def test_a_changed_object_among_inputs() -> None:
    """An equal one is taken as it comes, and one that has changed is no silent constant."""
    x, model, settings = torch.ones(4, 4), Scaled(), Settings(2.0)
    expected = model(x, settings).detach()
    torch.testing.assert_close(ipu_evaluate_batch(model, x, settings), expected)
    torch.testing.assert_close(ipu_evaluate_batch(model, x, Settings(2.0)), expected)
    settings.scale = 3.0
    with pytest.raises(BatchError, match=r"a Settings, now holds .*: scale"):
        ipu_evaluate_batch(model, x, settings)


def test_a_changed_object_among_targets() -> None:
    """That goes for updates, and for the result of a trainer's `prepare_batch`."""
    x, y = torch.ones(4, 4), torch.zeros(4).long()
    states = []
    for train in (train_natively, ipu_train_batch):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            train(model, optimizer, loss_of, x, target=(Settings(2.0), y))
        states.append(model.state_dict())
    torch.testing.assert_close(states[1], states[0])
    with pytest.raises(BatchError, match=r"y\[0\], a Settings, now holds .*: scale"):
        ipu_train_batch(model, optimizer, loss_of, x, target=(Settings(1.0), y))
    settings, model = Settings(2.0), nn.Linear(4, 3)
    trainer = create_ipu_trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss_of,
        prepare_batch=lambda batch, **kwargs: (batch[0], (settings, batch[1])),
    )
    trainer.run([(x, y)] * 2)
    settings.scale = 1.0
    with pytest.raises(BatchError, match=r"y\[0\], a Settings, now holds .*: scale"):
        trainer.run([(x, y)] * 2)


def train_natively(model: nn.Module, optimizer: Any, loss_fn: Any, x: torch.Tensor, target: Any) -> None:
    optimizer.zero_grad()
    loss_fn(model(x), target).backward()
    optimizer.step()


class Graph:
    def __init__(self, nodes: torch.Tensor, scale: float = 1.0) -> None:
        self.nodes, self.scale = nodes, scale


def test_attributes_of_a_record_are_inputs() -> None:
    """Tensors and numbers among them may change from call to call, whether the class has a parser or not."""
    poptorch: Any = backend.poptorch()

    class Parser(poptorch.ICustomArgParser):  # type: ignore[misc]
        def yieldTensors(self, struct: Graph) -> Any:
            yield struct.nodes

        def reconstruct(self, original: Graph, tensors: Any) -> Graph:
            return Graph(next(tensors), original.scale)

    model, x = Scaled(), torch.ones(4, 4)
    for parser in (None, Parser()):
        poptorch.registerCustomArgParser(Graph, parser)
        try:
            for graph in (Graph(x), Graph(2 * x), Graph(x, 2.0)):
                torch.testing.assert_close(ipu_evaluate_batch(model, x, graph), model(x, graph).detach())
        finally:
            poptorch.registerCustomArgParser(Graph, None)
    with pytest.raises(BatchError, match=r"\['scale'\] is now None, but the model was compiled for a number"):
        ipu_evaluate_batch(model, x, Graph(x, None))  # type: ignore[arg-type]


class Hidden(Graph):
    """Keeps its tensors where only a parser finds them."""

    def __init__(self, nodes: torch.Tensor, scale: float = 1.0) -> None:
        self.held = {"inner": SimpleNamespace(nodes=nodes)}
        self.scale = scale

    nodes = property(lambda self: self.held["inner"].nodes)  # type: ignore[assignment]


def test_tensors_deep_in_an_object_need_a_parser() -> None:
    """With one they are inputs like others; without one they would be constants, which is said."""
    poptorch: Any = backend.poptorch()

    class Parser(poptorch.ICustomArgParser):  # type: ignore[misc]
        def yieldTensors(self, struct: Hidden) -> Any:
            yield struct.nodes

        def reconstruct(self, original: Hidden, tensors: Any) -> Hidden:
            return Hidden(next(tensors), original.scale)

    model, x = Scaled(), torch.ones(4, 4)
    with pytest.raises(BatchError, match=r"a Hidden with tensors, one of shape \(4, 4\).*registerCustomArgParser"):
        ipu_evaluate_batch(model, x, Hidden(x))
    poptorch.registerCustomArgParser(Hidden, Parser())
    try:
        for graph in (Hidden(x), Hidden(2 * x)):
            torch.testing.assert_close(ipu_evaluate_batch(model, x, graph), model(x, graph).detach())
        with pytest.raises(BatchError, match=r"a Hidden, now holds .*: scale"):
            ipu_evaluate_batch(model, x, Hidden(x, 2.0))
    finally:
        poptorch.registerCustomArgParser(Hidden, None)
