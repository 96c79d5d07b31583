"""Containers are made again of other parts, each as its own kind."""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, List

import pytest
import torch

from ignite_ipu.errors import BatchError
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


class AttrDict(dict):  # type: ignore[type-arg]
    """A dictionary that is the table of its own attributes."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(entries)
        self.__dict__ = self


@dataclasses.dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """A dictionary whose entries are fields, too; one field is none."""

    x: Any
    rest: Any = None

    def __post_init__(self) -> None:
        self["x"] = self.x


class Images(list):  # type: ignore[type-arg]
    """A list whose class is called with other arguments."""

    def __init__(self, *, x: Any) -> None:
        super().__init__([x, x + 1])
        self.x, self.size = self[0], (2, 2)


class Scores(tuple):  # type: ignore[type-arg]
    """A tuple whose class is called with other arguments."""

    def __new__(cls, *, x: Any) -> Any:
        made = super().__new__(cls, (x,))
        made.x, made.mean = made[0], x.mean()
        return made


class Encoding(UserDict):  # type: ignore[type-arg]
    """A mapping around a dictionary."""

    def __getattr__(self, name: str) -> Any:
        if name == "data":
            raise AttributeError(name)
        return self.data[name]


@dataclasses.dataclass
class Derived:
    """An object that derives an attribute, which is no field."""

    x: Any

    def __post_init__(self) -> None:
        self.more = {"twice": self.x * 2}


def of(value: Any) -> List[Any]:
    """Return all that code may read from such a value: its entries and its attributes."""
    entries = list(value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ())
    return [entries, {} if getattr(value, "__dict__", None) is value else vars(value)]


@pytest.mark.parametrize("kind", [AttrDict, Output, Images, Scores, Encoding, Derived])
def test_entries_and_attributes_are_parts(kind: Any) -> None:
    """What is one tensor in a value is one in the value that is made, whose class is not called."""
    value = kind(x=torch.ones(2, 2))
    made = map_tensors(value, lambda tensor: tensor * 3)
    assert type(made) is kind and made.x.tolist() == [[3, 3], [3, 3]]
    first = made["x"] if isinstance(value, Mapping) else made[0] if isinstance(value, (list, tuple)) else made.x
    assert made.x is first
    assert map_tensors(of(made), torch.Tensor.tolist) == map_tensors(of(value), lambda tensor: (tensor * 3).tolist())


def test_a_mapping_that_computes_its_entries_becomes_a_dictionary() -> None:
    class Computed(Mapping):  # type: ignore[type-arg]
        names = ("x",)

        def __getitem__(self, name: str) -> torch.Tensor:
            return torch.ones(2)

        def __iter__(self) -> Any:
            return iter(self.names)

        def __len__(self) -> int:
            return 1

    made = map_tensors(Computed(), torch.numel)
    assert type(made) is dict and made == {"x": 2}


def test_what_cannot_be_made_again_is_refused() -> None:
    class Partial(functools.partial):  # type: ignore[type-arg]
        tensor: Any

    class Node(dict):  # type: ignore[type-arg]
        parent: Any

    partial, node = Partial(print), Node(x=torch.ones(1))
    partial.tensor, node.parent = torch.ones(1), [node]
    with pytest.raises(BatchError, match=r"A .*Partial cannot be made again.*code of C"):
        map_tensors(partial, torch.neg)
    with pytest.raises(BatchError, match=r"A .*Node holds itself, in its attribute 'parent'"):
        map_tensors(node, torch.neg)


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
