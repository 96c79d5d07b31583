"""Containers are made again of other parts, each as its own kind."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ignite_ipu.program.tensors.trees import (
    leaves_of,
    map_tensors,
    opened,
    opened_object,
    restore_contents,
    tensors_in,
)

Pair = namedtuple("Pair", "left right")


class Batch(list):  # type: ignore[type-arg]
    """A list of the user's own kind."""


def _forbidden(*args: Any, **kwargs: Any) -> None:
    raise TypeError("it is fixed")


class Fixed(OrderedDict):  # type: ignore[type-arg]
    """A mapping that forbids changes, and has each entry as an attribute."""

    def __init__(self, **entries: Any) -> None:
        super().__init__()
        for name, value in entries.items():
            OrderedDict.__setitem__(self, name, value)
            self.__dict__[name] = value

    __setitem__ = __setattr__ = __delitem__ = update = clear = pop = _forbidden  # type: ignore[assignment]


class FixedList(list):  # type: ignore[type-arg]
    """A list that forbids changes."""

    __setitem__ = __delitem__ = append = extend = clear = _forbidden  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Sample:
    """An object with fields."""

    x: Any
    y: Any


@pytest.mark.parametrize(
    "value",
    [
        [1, 2],
        (1, 2),
        Pair(1, 2),
        Batch([1, 2]),
        {"a": 1, "b": 2},
        OrderedDict(a=1, b=2),
        defaultdict(int, a=1, b=2),
        torch.ones(2, 2).max(0),
        deque([1, 2], maxlen=5),
        slice(1, 2, None),
        SimpleNamespace(a=1, b=2),
        Sample(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_container_of_other_parts_is_of_its_kind(value: Any) -> None:
    container = opened(value) or opened_object(value)
    assert container is not None
    made = container.maker()([f"part {number}" for number in range(len(container.parts))])
    again = opened(made) or opened_object(made)
    assert type(made) is type(value) and again is not None and again.keys == container.keys
    assert again.parts == [f"part {number}" for number in range(len(container.parts))]


def test_mappings_of_other_kinds_become_dictionaries() -> None:
    """Their own constructors are not known."""
    assert map_tensors(UserDict(x=torch.ones(2)), torch.numel) == {"x": 2}


def test_what_a_dictionary_carries_besides_its_items_stays() -> None:
    made = map_tensors(defaultdict(list, x=torch.ones(3)), torch.numel)
    assert made == {"x": 3} and made["other"] == []


def test_a_mapping_that_forbids_changes_is_made_again() -> None:
    made = map_tensors(Fixed(x=torch.ones(2), name="a"), lambda tensor: tensor * 2)
    assert type(made) is Fixed and made["x"].tolist() == made.x.tolist() == [2, 2] and made["name"] == made.name == "a"
    with pytest.raises(TypeError, match="fixed"):
        made["x"] = 0


@pytest.mark.parametrize("container", [Fixed(a=1, b=2), FixedList([1, 2]), {"a": 1, "b": 2}, deque([1, 2]), [1, 2]])
def test_contents_are_restored_in_their_order(container: Any) -> None:
    """Even if its class forbids it: the code that replaced them has bypassed it, too."""
    before = dict(container) if isinstance(container, dict) else list(container)
    base = OrderedDict if isinstance(container, OrderedDict) else dict
    if isinstance(container, dict):
        base.__setitem__(container, "c", 3)
        base.__delitem__(container, "a")
        base.__setitem__(container, "a", 1)
    elif isinstance(container, list):
        list.insert(container, 0, 5)
    else:
        container.rotate()
    restore_contents(container, before)
    assert list(container.items() if isinstance(container, dict) else container) == list(
        before.items() if isinstance(before, dict) else before
    )


def test_contents_that_are_the_same_are_left_alone() -> None:
    class Watched(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: Any, value: Any) -> None:
            raise AssertionError("it was written into")

    container = Watched(a=[])
    restore_contents(container, {"a": container["a"]})


def test_leaves_are_found_in_order() -> None:
    """Those of a record are its fields, or it is one: PopTorch does not find tensors in it."""
    first, second, third = torch.ones(1), torch.ones(2), Sample(torch.ones(3), 0)
    nested = [first, {"a": (second, "text")}, third]
    for records, last in ((True, [*vars(third).values()]), (False, [third])):
        found = list(leaves_of(nested, records))
        assert list(map(id, found)) == list(map(id, [first, second, "text", *last]))
    assert [tensor.numel() for tensor in tensors_in(nested)] == [1, 2, 3]
