"""Nested values: the parts of containers, and containers made of other parts.

`torch.utils._pytree` does less: it takes subclasses of lists and dictionaries, mappings of other kinds and objects with
fields for leaves, and in PyTorch 2.0 torch's own named results, too.
"""

from __future__ import annotations

import copy
import dataclasses
from argparse import Namespace
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping  # a class, which is asked faster than its name in `typing`
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch.distributions import Distribution

PLAIN: FrozenSet[type] = frozenset(
    (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
)
"""The types of values that are what they are: comparable, and without parts."""
_LEAVES = PLAIN - {torch.Size}

Make = Callable[[Sequence[Any]], Any]


class Container(NamedTuple):
    """A value that holds others: its parts, and the keys that find them; none where their positions do."""

    value: Any
    keys: Tuple[Any, ...]
    parts: List[Any]

    def maker(self) -> Make:
        """Return a function that makes such a container of other parts; it keeps none of these."""
        kind = type(self.value)
        if isinstance(self.value, (list, tuple)):
            # torch's own named results (torch.return_types) take one sequence, like tuples; namedtuples have _make.
            make: Make = getattr(kind, "_make", kind)
            return make
        if isinstance(self.value, Mapping):
            return self._maker_of_mappings(kind)
        if kind is deque:
            longest = self.value.maxlen
            return lambda parts: deque(parts, longest)
        if kind is slice:
            return lambda parts: slice(*parts)
        if kind in (SimpleNamespace, Namespace):
            return lambda parts: kind(**dict(zip(self.keys, parts)))
        names = self.keys

        def make_object(parts: Sequence[Any]) -> Any:
            built = object.__new__(kind)
            for name, part in zip(names, parts):
                object.__setattr__(built, name, part)
            return built

        return make_object

    def _maker_of_mappings(self, kind: Any) -> Make:
        keys = self.keys
        if kind in (dict, OrderedDict):
            return lambda parts: kind(zip(keys, parts))
        if not isinstance(self.value, dict):
            # Tokenizers return mappings of their own, of which models read the items.
            return lambda parts: dict(zip(keys, parts))
        try:
            template = copy.copy(self.value)
            for key in keys:
                template[key] = None
        except Exception:  # it forbids changes, by any error
            return self._maker_of_fixed_mappings(kind)

        def make(parts: Sequence[Any]) -> Any:
            # A copy keeps the additional attributes of a subclass, as of the outputs of transformers' models.
            built = copy.copy(template)
            for key, part in zip(keys, parts):
                built[key] = part
            return built

        return make

    def _maker_of_fixed_mappings(self, kind: Any) -> Make:
        """Return a maker of dictionaries of a class that forbids changes: it bypasses the class."""
        keys, base = self.keys, _base_of(self.value)
        places = {id(part): position for position, part in enumerate(self.parts)}
        attributes = getattr(self.value, "__dict__", {})
        # Some have each entry as an attribute, too.
        mirrored = {name: places[id(value)] for name, value in attributes.items() if id(value) in places}
        others = {name: value for name, value in attributes.items() if name not in mirrored}

        def make(parts: Sequence[Any]) -> Any:
            built = kind.__new__(kind)
            for key, part in zip(keys, parts):
                base.__setitem__(built, key, part)
            if attributes:
                built.__dict__.update(others, **{name: parts[place] for name, place in mirrored.items()})
            return built

        return make


def _base_of(mapping: Any) -> Any:
    return OrderedDict if isinstance(mapping, OrderedDict) else dict


def restore_contents(container: Any, before: Any) -> None:
    """Give a list, a deque or a dictionary the entries back that it had; touch nothing where it has them still.

    It is written past the methods of its class, which may forbid changes, or count them.
    """
    if isinstance(container, dict):
        base, keys = _base_of(container), list(before)
        if list(base.keys(container))[: len(keys)] != keys:  # some were removed, and their order counts
            base.clear(container)
        for key in [key for key in base.keys(container) if key not in before]:
            base.__delitem__(container, key)
        for key, value in before.items():
            if base.get(container, key, base) is not value:
                base.__setitem__(container, key, value)
        return
    if len(container) == len(before) and all(now is then for now, then in zip(container, before)):
        return
    if isinstance(container, deque):
        deque.clear(container)
        deque.extend(container, before)
    else:
        list.__setitem__(container, slice(None), before)


def opened(value: Any) -> Optional[Container]:
    """Return the items of a list, a tuple or a mapping of any kind, None for another value."""
    if isinstance(value, (list, tuple)):
        return Container(value, (), list(value))
    if isinstance(value, (dict, Mapping)):  # a dictionary is asked faster
        return Container(value, tuple(value), list(value.values()))
    return None


def opened_object(value: Any) -> Optional[Container]:
    """Return the parts of a deque, a slice, a namespace or a dataclass, None for another value."""
    kind = type(value)
    if kind is deque:
        return Container(value, (value.maxlen,), list(value))  # its one property beside the parts
    if kind is slice:
        return Container(value, (), [value.start, value.stop, value.step])
    if kind in (SimpleNamespace, Namespace):
        return Container(value, tuple(vars(value)), list(vars(value).values()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value))
        return Container(value, names, [getattr(value, name) for name in names])
    return None


def opened_record(value: Any) -> Optional[Container]:
    """Return the parts of an object with tensors, such as a dataclass; None for another value.

    They are attributes, or are in lists, tuples, dictionaries, dataclasses and distributions among these.
    """
    if type(value) in PLAIN or isinstance(value, (type, torch.nn.Module)):
        return None
    held, seen = attributes_of(value), {id(value)}
    if any(_holds_tensors(part, seen) for part in held.values()):
        return Container(value, tuple(held), list(held.values()))
    return None


def attributes_of(value: Any) -> Dict[str, Any]:
    """Return the attributes that an object has of its own, those in slots, too."""
    held: Dict[str, Any] = dict(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        if "__slots__" in vars(kind):
            slots = (name for name, member in vars(kind).items() if isinstance(member, MemberDescriptorType))
            held.update({name: getattr(value, name) for name in slots if hasattr(value, name)})
    return held


def _holds_tensors(value: Any, seen: Set[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, (list, tuple)):
        parts: Any = value
    elif type(value) in (dict, OrderedDict, defaultdict):  # other mappings may compute their items
        parts = value.values()
    elif isinstance(value, Distribution) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        parts = attributes_of(value).values()
    else:
        return False
    if id(value) in seen:
        return False
    seen.add(id(value))
    return any(_holds_tensors(part, seen) for part in parts)


def leaves_of(value: Any, records: bool = True) -> Iterator[Any]:
    """Yield the leaves in order: all but lists, tuples, mappings and, if they count, records (`opened_record`)."""
    # Tensors and numbers first: whether something else is a mapping takes longer to find out.
    is_leaf = type(value) in _LEAVES or isinstance(value, torch.Tensor)
    container = None if is_leaf else opened(value) or (opened_record(value) if records else None)
    if container is None:
        yield value
        return
    for part in container.parts:
        yield from leaves_of(part, records)


def tensors_in(value: Any) -> List[torch.Tensor]:
    """Return the tensors in a nested value, in order; see `leaves_of`."""
    found: List[torch.Tensor] = []
    _add_tensors(value, found)
    return found


def _add_tensors(value: Any, found: List[torch.Tensor]) -> None:
    kind = type(value)
    if kind is tuple or kind is list:
        parts = value
    elif kind is dict:
        parts = value.values()
    elif kind in _LEAVES:
        return
    elif isinstance(value, torch.Tensor):
        found.append(value)
        return
    else:
        container = opened(value) or opened_record(value)
        parts = () if container is None else container.parts
    for part in parts:
        # Most parts are tensors and numbers, for which a call of this would take longer.
        if isinstance(part, torch.Tensor):
            found.append(part)
        elif type(part) not in _LEAVES:
            _add_tensors(part, found)


def map_tensors(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """Return a nested value with `fn(tensor)` in place of every tensor in it; see `leaves_of`."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    container = opened(value) or opened_record(value)
    return value if container is None else container.maker()([map_tensors(part, fn) for part in container.parts])
