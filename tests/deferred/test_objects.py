"""Objects that a model is called with count with their contents, as in eager PyTorch."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import types
from typing import Any, Callable, ClassVar, List, Tuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


class Settings:
    """Has its temperature in one of several places."""

    inherited = 1.0

    def __init__(self) -> None:
        self.t = 1.0
        self.inner = {"more": [types.SimpleNamespace(t=1.0)]}
        self.array = np.ones(3)

    def temperature(self) -> float:
        return self.t


class Slots:
    __slots__ = ("t",)


class Net(nn.Module):
    """Divides by the value that a function finds in its argument."""

    def __init__(self, find: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.find = find

    def forward(self, x: torch.Tensor, given: Any) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x) / self.find(given)
        return scores


def losses(
    given: Any, change: Callable[[Any, float], None], find: Callable[[Any], Any], captures: bool
) -> Tuple[List[float], Net]:
    """Train and evaluate while the object changes."""
    torch.manual_seed(0)
    model = Net(find)
    if captures:
        capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    capture_optimizer(optimizer)
    seen = []
    for t in (1.0, 2.0, 3.0, 2.0):
        change(given, t)
        loss = F.cross_entropy(model(X, given), Y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    model.eval()
    for t in (1.0, 2.0, 1.0):
        change(given, t)
        with torch.no_grad():
            seen.append(model(X, given).abs().sum().item())
    return seen, model


def in_object(settings: Any, t: float) -> None:
    settings.t = settings.inner["more"][0].t = type(settings).inherited = t
    settings.array[1] = t


def in_queue(queue: Any, t: float) -> None:
    queue.append(t)


def in_method(method: Any, t: float) -> None:
    method.__self__.t = t


def scaled(t: float) -> Tuple[Callable[[], float], Callable[[Any, float], None]]:
    def read() -> float:
        return t

    def change(given: Any, new: float) -> None:
        nonlocal t
        t = new

    return read, change


CLOSURE, CHANGE_CLOSURE = scaled(1.0)


@pytest.mark.parametrize(
    ("make", "change", "find"),
    [
        (lambda: types.SimpleNamespace(t=1.0), lambda given, t: setattr(given, "t", t), lambda given: given.t),
        (lambda: argparse.Namespace(t=1.0), lambda given, t: setattr(given, "t", t), lambda given: given.t),
        (Slots, lambda given, t: setattr(given, "t", t), lambda given: given.t),
        (Settings, in_object, lambda given: given.t),
        (Settings, in_object, lambda given: given.inner["more"][0].t),
        (Settings, in_object, lambda given: given.inherited),
        (Settings, in_object, lambda given: float(given.array[1])),
        (lambda: Settings().temperature, in_method, lambda given: given()),
        (lambda: functools.partial(Settings().temperature), lambda f, t: in_method(f.func, t), lambda f: f()),
        (lambda: CLOSURE, CHANGE_CLOSURE, lambda given: given()),
        (lambda: collections.deque([torch.ones(())], 1), in_queue, lambda given: given[0]),
    ],
)
def test_contents_count(make: Any, change: Any, find: Any) -> None:
    """With other contents it is another program, in training and in evaluation."""
    expected, _ = losses(make(), change, find, captures=False)
    found, _ = losses(make(), change, find, captures=True)
    assert found == pytest.approx(expected, rel=1e-4)


def test_tensors_in_namespaces_and_queues_are_inputs() -> None:
    """As those in lists are: one program."""

    def set_tensor(given: Any, t: float) -> None:
        given.pair.append(torch.tensor(t))

    def make() -> Any:
        return types.SimpleNamespace(pair=collections.deque([torch.ones(()), torch.ones(())], 2))

    expected, _ = losses(make(), set_tensor, lambda given: sum(given.pair), captures=False)
    found, model = losses(make(), set_tensor, lambda given: sum(given.pair), captures=True)
    assert found == pytest.approx(expected, rel=1e-4)
    assert model._ignite_ipu_capture.loop.compilations == 1  # type: ignore[union-attr]


class Scales:
    """Has a factor of its class beside a tensor."""

    factor = 1.0

    def __init__(self) -> None:
        self.scale = torch.ones(2)


@dataclasses.dataclass
class ScalesOfFields:
    scale: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(2))
    factor: ClassVar[float] = 1.0


def deep_in_settings(settings: Any, t: float) -> None:
    settings.array = None  # an array beside tensors is refused, as among the arguments themselves
    settings.inner["more"][1:] = [{"mask": torch.full((2,), t)}]


def in_slots(slots: Any, t: float) -> None:
    slots.t = torch.full((2,), t)


def of_a_class(scales: Any, t: float) -> None:
    type(scales).factor = t


@pytest.mark.parametrize(
    ("make", "change", "find", "programs"),
    [
        (Settings, deep_in_settings, lambda given: given.inner["more"][1]["mask"], 1),
        (Slots, in_slots, lambda given: given.t, 1),
        (Scales, of_a_class, lambda given: given.scale * given.factor, 3),
        (ScalesOfFields, of_a_class, lambda given: given.scale * given.factor, 3),
    ],
)
def test_tensors_deep_in_an_object_are_inputs(make: Any, change: Any, find: Any, programs: int) -> None:
    """They may change without another program; what is no tensor counts, attributes of the class, too."""
    expected, _ = losses(make(), change, find, captures=False)
    found, model = losses(make(), change, find, captures=True)
    assert found == pytest.approx(expected, rel=1e-4)
    assert model._ignite_ipu_capture.loop.compilations == programs  # type: ignore[union-attr]


def test_an_object_changed_before_its_update_is_refused() -> None:
    """The program would be compiled with other contents than the call had."""
    model = Net(lambda given: given.t)
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    capture_optimizer(optimizer)
    given = Settings()
    F.cross_entropy(model(X, given), Y).backward()
    given.t = 2.0
    with pytest.raises(CaptureError, match=r"A Settings .* was changed between the call.*after optimizer\.step"):
        optimizer.step()


@pytest.mark.parametrize("given", [types.SimpleNamespace(t=[1.0]), Settings(), [1.0]])
def test_a_forward_that_changes_what_it_is_given_is_refused(given: Any) -> None:
    """A compiled program would do it once."""

    def find(given: Any) -> float:
        items = given if isinstance(given, list) else given.inner["more"] if isinstance(given, Settings) else given.t
        items.append(1.0)
        return 1.0

    with pytest.raises(CaptureError, match=r"forward of Net.*changes an object that it is given"):
        losses(given, lambda given, t: None, find, captures=True)
