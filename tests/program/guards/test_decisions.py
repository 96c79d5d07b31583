"""Values that code may decide by, wherever a call has changed them."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List

import pytest
import torch
from torch import nn

from ignite_ipu.program.guards.decisions import Decisions

X = torch.ones(1)
TABLE: Dict[str, Any] = {"begun": False}
BEGUN = False


class Shared:
    begun = False


class Slotted:
    __slots__ = ("begun", "later")


@dataclasses.dataclass(frozen=True)
class Settings:
    begun: bool = False


def in_a_closure() -> Callable[[], None]:
    begun = False

    def begin() -> None:
        nonlocal begun
        if not begun:
            begun = True

    return begin


class Model(nn.Module):
    """Reaches a flag in many places, and changes one of them by a function."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__()
        self.change, self.begin = change, in_a_closure()
        self.state, self.slots, self.settings = SimpleNamespace(begun=False, cache=None), Slotted(), Settings()
        self.state.stream = iter([1, 2, 3])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.change(self)
        return x


def in_an_object(model: Any) -> None:
    if not model.state.begun:
        model.state.begun = True


def as_a_new_attribute(model: Any) -> None:
    if not hasattr(model.state, "later"):
        model.state.later = True


def in_a_slot(model: Any) -> None:
    if not getattr(model.slots, "begun", False):
        model.slots.begun = True


def in_a_class(model: Any) -> None:
    if not Shared.begun:
        Shared.begun = True


def in_a_table(model: Any) -> None:
    if not TABLE["begun"]:
        TABLE["begun"] = True


def in_a_global(model: Any) -> None:
    global BEGUN
    if not BEGUN:
        BEGUN = True


def as_a_new_global(model: Any) -> None:
    global LATER
    try:
        LATER  # noqa: B018
    except NameError:
        LATER = True


def by_a_closure(model: Any) -> None:
    model.begin()


def by_another_object(model: Any) -> None:
    if not model.settings.begun:
        model.settings = Settings(begun=True)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (in_an_object, ["self.state.begun"]),
        (as_a_new_attribute, ["later"]),
        (in_a_slot, ["begun", "self.begun"]),
        (in_a_class, ["self.begun"]),
        (in_a_table, ["TABLE"]),
        (in_a_global, ["BEGUN"]),
        (as_a_new_global, ["LATER"]),
        (by_a_closure, ["begun"]),
        (by_another_object, ["settings"]),
    ],
)
def test_a_flag_is_found_where_it_is(change: Any, names: List[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: a call that finds it set changes nothing."""
    monkeypatch.setattr(Shared, "begun", False)
    monkeypatch.setitem(TABLE, "begun", False)
    monkeypatch.setitem(globals(), "BEGUN", False)
    try:
        model = Model(change)
        before = Decisions(model)
        assert before.changed() == [] and before.are_current
        model(X)
        assert before.changed() == names and not before.are_current
        after = Decisions(model)
        model(X)
        assert after.changed() == []
    finally:
        globals().pop("LATER", None)


def keeps_a_result(model: Any) -> None:
    if model.state.cache is None:
        model.state.cache = torch.ones(2)


def draws(model: Any) -> None:
    next(model.state.stream)


@pytest.mark.parametrize("change", [keeps_a_result, draws])
def test_tensors_and_iterators_are_no_flags(change: Any) -> None:
    model = Model(change)
    before = Decisions(model)
    model(X)
    assert before.changed() == []


def in_its_own_class(model: Any) -> None:
    if not getattr(type(model), "is_later", False):
        type(model).is_later = True


def by_an_import(model: Any) -> None:
    import imported_later  # noqa: F401


def as_another_weight(model: Any) -> None:
    model.layer.weight = nn.Parameter(torch.ones(1, 1))


def as_another_layer(model: Any) -> None:
    model.layer = nn.Linear(1, 1)


def as_an_attribute_of_a_layer(model: Any) -> None:
    model.layer.later = True


@pytest.mark.parametrize(
    "change", [in_its_own_class, by_an_import, as_another_weight, as_another_layer, as_an_attribute_of_a_layer]
)
def test_what_a_search_would_find_elsewhere(change: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A later search has another result, though no flag is set."""
    (tmp_path / "imported_later.py").write_text("BEGUN = False")
    monkeypatch.syspath_prepend(tmp_path)
    model: Any = Model(change)
    model.layer = nn.Linear(1, 1)
    before = Decisions(model)
    assert before.are_current
    try:
        model(X)
        assert not before.are_current
    finally:
        sys.modules.pop("imported_later", None)
        if "is_later" in vars(Model):
            del Model.is_later  # type: ignore[attr-defined]


def test_many_layers_are_all_looked_at() -> None:
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(200)])
    before = Decisions(model)
    model(X)
    assert before.are_current
    model[199].later = True  # type: ignore[assignment]
    assert not before.are_current
