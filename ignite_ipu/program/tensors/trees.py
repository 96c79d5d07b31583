"""Nested values: the parts of containers, and containers made of other parts.

`torch.utils._pytree` does less: it takes subclasses of lists and dictionaries, mappings of other kinds and objects with
fields for leaves, and in PyTorch 2.0 torch's own named results, too.
"""

from __future__ import annotations

import dataclasses
import functools
from argparse import Namespace
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping  # a class, which is asked faster than its name in `typing`
from types import FunctionType, MemberDescriptorType, ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch.distributions import Distribution

from ignite_ipu.errors import BatchError

PLAIN: FrozenSet[type] = frozenset(
    (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size)
)
"""The types of values that are what they are: comparable, and without parts."""
_LEAVES = PLAIN - {torch.Size}

_WITHOUT_PARTS = (torch.Tensor, torch.nn.Module, type, FunctionType, ModuleType)
_BASES = (list, tuple, OrderedDict, defaultdict, dict, deque, SimpleNamespace, object)

Make = Callable[[Sequence[Any]], Any]


class Attribute(NamedTuple):
    """The place of an attribute that a list, a tuple or a mapping of a class of its own has besides its entries.

    Attributes:
        name: Name of the attribute.
        shared: The position of the entry that the attribute is, too, or what else it is; None for a part of its own.
    """

    name: str
    shared: Any = None

    def __repr__(self) -> str:
        return repr(self.name)


_ITSELF, _TABLE = "itself", "a table of the entries"


class Container(NamedTuple):
    """A value that holds others: its parts, and the keys that find them; none where their positions do.

    The attributes of a list or a mapping come after its entries; those that are no parts of their own are the last.
    """

    value: Any
    keys: Tuple[Any, ...]
    parts: List[Any]

    def maker(self) -> Make:
        """Return a function that makes such a container of other parts; it keeps none of these.

        It does not call the class, whose constructor may want other arguments, compute, or forbid changes.

        Raises:
            BatchError: An object of the class is made by its own code of C alone.
        """
        value: Any = self.value
        kind: Any = type(value)
        if kind is list or kind is tuple:
            return kind
        if kind is dict or kind is OrderedDict:
            keys = self.keys
            return lambda parts: kind(zip(keys, parts))
        if kind is slice:
            return lambda parts: slice(*parts)
        if kind is torch.Size or hasattr(kind, "n_sequence_fields"):  # or torch's own named results, of return_types
            return kind  # type: ignore[no-any-return]
        if isinstance(value, Mapping) and not isinstance(value, dict) and not _is_table(self.keys):
            # It computes its entries: of such mappings models read these.
            return lambda parts: dict(zip(self.keys, parts))
        return self._past_the_class(kind)

    def _past_the_class(self, kind: Any) -> Make:
        keys, base = self.keys, _base_of(kind)
        if not keys or type(keys[-1]) is not Attribute:
            if base is tuple:
                return functools.partial(tuple.__new__, kind)
            if base in (object, SimpleNamespace):
                return functools.partial(_made_of_attributes, kind, base, keys)
        fill = _filler(self.value, base)
        places = [key for key in keys if type(key) is Attribute]
        own = [place.name for place in places if place.shared is None]
        others = [place for place in places if place.shared is not None]
        count = len(self.parts) - len(own)
        keys = keys[:count]

        def make(parts: Sequence[Any]) -> Any:
            built = base.__new__(kind, parts[:count]) if base is tuple else base.__new__(kind)
            if fill is not None:
                fill(built, keys, parts[:count])
            attributes = dict(zip(own, parts[count:]))
            for name, shared in others:
                if shared is _TABLE:
                    attributes[name] = dict(zip(keys, parts))
                elif name:
                    attributes[name] = built if shared is _ITSELF else parts[shared]
                else:
                    object.__setattr__(built, "__dict__", built)
            _set(built, attributes)
            return built

        return make


def _made_of_attributes(kind: Any, base: Any, names: Sequence[str], parts: Sequence[Any]) -> Any:
    built = base.__new__(kind)
    _set(built, dict(zip(names, parts)))
    return built


def _set(built: Any, attributes: Dict[str, Any]) -> None:
    kind: Any = type(built)
    for name in _slots_of(kind):
        if name in attributes:
            object.__setattr__(built, name, attributes.pop(name))
    if attributes:
        built.__dict__.update(attributes)


def _is_table(keys: Tuple[Any, ...]) -> bool:
    return any(type(key) is Attribute and key.shared is _TABLE for key in keys)


@functools.lru_cache(maxsize=1024)
def _base_of(kind: Any) -> Any:
    """Return the class of Python's own that makes an empty object of a class, past the class's own code."""
    base: Any = next(base for base in _BASES if issubclass(kind, base))
    try:
        base.__new__(kind)
    except TypeError:
        raise BatchError(
            f"A {kind.__qualname__} cannot be made again with the device's tensors in it: it is made by code of C "
            "alone. Use a tuple, a dict, a dataclass or a types.SimpleNamespace instead."
        ) from None
    return base


def _filler(value: Any, base: Any) -> Optional[Callable[[Any, Sequence[Any], Sequence[Any]], None]]:
    """Return a function that gives a new list or dictionary its entries, and the factory or length of its base."""
    if isinstance(value, list):
        return lambda built, keys, parts: list.extend(built, parts)
    if isinstance(value, deque):
        longest = value.maxlen
        return lambda built, keys, parts: deque.__init__(built, parts, longest)
    if not isinstance(value, dict):
        return None
    factory = value.default_factory if isinstance(value, defaultdict) else None

    def fill(built: Any, keys: Sequence[Any], parts: Sequence[Any]) -> None:
        if factory is not None:
            defaultdict.__init__(built, factory)
        for key, part in zip(keys, parts):
            base.__setitem__(built, key, part)

    return fill


def restore_contents(container: Any, before: Any) -> None:
    """Give a list, a deque or a dictionary the entries back that it had; touch nothing where it has them still.

    It is written past the methods of its class, which may forbid changes, or count them.
    """
    if isinstance(container, dict):
        base, keys = OrderedDict if isinstance(container, OrderedDict) else dict, list(before)
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
    """Return the items of a list, a tuple or a mapping of any kind, and its attributes; None for another value."""
    kind = type(value)
    if kind is list or kind is tuple:
        return Container(value, (), list(value))
    if kind is dict or kind is OrderedDict:
        return Container(value, tuple(value), list(value.values()))
    if isinstance(value, (list, tuple)):
        return _with_attributes(value, (), list(value))
    if isinstance(value, (dict, Mapping)):  # a dictionary is asked faster
        return _with_attributes(value, tuple(value), list(value.values()))
    return None


def _with_attributes(value: Any, keys: Tuple[Any, ...], entries: List[Any]) -> Container:
    """Return a container with its entries, and with the attributes that it has besides."""
    if getattr(value, "__dict__", None) is value:
        return Container(value, (*keys, Attribute("", _ITSELF)), entries)
    attributes, places = attributes_of(value), keys or tuple(range(len(entries)))
    if not isinstance(value, (list, tuple, dict, deque)):
        return _of_mapping(value, keys, entries, attributes)
    positions = {id(entry): number for number, entry in enumerate(entries) if type(entry) not in PLAIN}
    shared = {name: _ITSELF if each is value else positions.get(id(each)) for name, each in attributes.items()}
    own = [name for name, each in shared.items() if each is None]
    others = [Attribute(name, each) for name, each in shared.items() if each is not None]
    if not attributes:
        return Container(value, keys, entries)
    for name in own:
        if _reaches(attributes[name], value):
            kind = type(value).__qualname__
            raise BatchError(
                f"A {kind} holds itself, in its attribute {name!r}. It is made again with the device's tensors in it, "
                f"one part after the other. Use one without this attribute, or its parts."
            )
    return Container(value, (*places, *map(Attribute, own), *others), [*entries, *[attributes[name] for name in own]])


def _reaches(value: Any, wanted: Any) -> bool:
    """Return whether an object is among the parts of another, at any depth."""
    left, seen = [value], set()
    while left:
        each = left.pop()
        if each is wanted:
            return True
        if type(each) in PLAIN or isinstance(each, _WITHOUT_PARTS) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, (list, tuple, deque)):
            left += each
        elif isinstance(each, dict):
            left += each.values()
        left += attributes_of(each).values()
    return False


def _of_mapping(value: Any, keys: Tuple[Any, ...], entries: List[Any], attributes: Dict[str, Any]) -> Container:
    """Return the parts of a mapping that is no dictionary: a class around one, or one that computes its entries.

    What a class around one, as tokenizers return, keeps for its own methods besides data is left out: in a compiled
    program it would be another batch's.
    """
    tables = {name: each for name, each in attributes.items() if type(each) is dict and _is_of(each, keys, entries)}
    if not tables:
        return Container(value, keys, entries)
    own = {name: each for name, each in attributes.items() if name not in tables and _is_data(each)}
    places = (*keys, *map(Attribute, own), *[Attribute(name, _TABLE) for name in tables])
    return Container(value, places, [*entries, *own.values()])


def _is_of(table: Dict[Any, Any], keys: Tuple[Any, ...], entries: Sequence[Any]) -> bool:
    return tuple(table) == keys and all(mine is theirs for mine, theirs in zip(table.values(), entries))


def _is_data(value: Any) -> bool:
    """Return whether a value consists of tensors, numbers and strings."""
    if type(value) in PLAIN or isinstance(value, torch.Tensor):
        return True
    container = opened(value)
    return container is not None and all(map(_is_data, container.parts))


def opened_object(value: Any) -> Optional[Container]:
    """Return the parts of a deque, a slice, a namespace or a dataclass, None for another value."""
    kind = type(value)
    if isinstance(value, deque):
        found = _with_attributes(value, (), list(value))
        return found._replace(keys=(value.maxlen, *found.keys))
    if kind is slice:
        return Container(value, (), [value.start, value.stop, value.step])
    if isinstance(value, (SimpleNamespace, Namespace)) or _is_dataclass(value):
        return _by_attributes(value)
    return None


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _by_attributes(value: Any) -> Container:
    held = attributes_of(value)
    return Container(value, tuple(held), list(held.values()))


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
    kind: Any = type(value)
    slots = _slots_of(kind)
    if slots:
        held.update({name: getattr(value, name) for name in slots if hasattr(value, name)})
    return held


@functools.lru_cache(maxsize=1024)
def _slots_of(kind: Any) -> Tuple[str, ...]:
    owners = [vars(each) for each in kind.__mro__ if "__slots__" in vars(each)]
    return tuple([name for own in owners for name, each in own.items() if isinstance(each, MemberDescriptorType)])


def _holds_tensors(value: Any, seen: Set[int]) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, (list, tuple)):
        parts: Any = value
    elif type(value) in (dict, OrderedDict, defaultdict):  # other mappings may compute their items
        parts = value.values()
    elif isinstance(value, Distribution) or _is_dataclass(value):
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
