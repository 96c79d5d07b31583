"""Nested values taken apart into leaves and a description that can be compared and put together again."""

from __future__ import annotations

import copy
import dataclasses
import functools
from argparse import Namespace
from collections import OrderedDict, deque
from types import SimpleNamespace
from typing import Any, Callable, Dict, FrozenSet, Hashable, Iterator, List, Mapping, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.guards.contents import Same, contents, identity

__all__ = ["PLAIN", "Structure", "is_tensor", "put_together", "take_apart", "take_call_apart", "words"]

# Types whose values become part of a structure.
PLAIN = frozenset((int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.Size))
_LEAF = ("leaf",)


@dataclasses.dataclass(frozen=True)
class Structure:
    """How to put leaves together.

    Attributes:
        key: Equal for structures that differ in their leaves alone.
        build: Called with an iterator over the leaves.
    """

    key: Hashable
    build: Callable[[Iterator[Any]], Any]

    @property
    def is_leaf(self) -> bool:
        """Whether it is one leaf that nothing surrounds."""
        return self.key is _LEAF


def words(text: str) -> FrozenSet[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def take_apart(value: Any, leaves: List[Any], is_leaf: Callable[[Any], bool] = is_tensor) -> Structure:
    """Append the leaves of `value` to `leaves` and return what surrounds them.

    Tuples (named ones too), lists, deques, slices, mappings, namespaces and dataclasses are looked into; anything else
    that is no leaf becomes part of the structure, with its contents.

    Raises:
        CaptureError: An object of another kind holds tensors, or the value is a numpy array or a cache of generation.
    """
    if is_leaf(value):
        leaves.append(value)
        return _ONE
    kind = type(value)
    if kind in PLAIN:
        return Structure(_key(kind, value), lambda remaining: value)
    if isinstance(value, (list, tuple)):
        parts = [take_apart(item, leaves, is_leaf) for item in value]
        return Structure(_key(kind, *[part.key for part in parts]), _sequence_builder(kind, parts))
    if kind is deque:
        parts = [take_apart(item, leaves, is_leaf) for item in value]
        longest = value.maxlen
        return Structure(
            _key(kind, longest, *[part.key for part in parts]),
            lambda remaining: deque([part.build(remaining) for part in parts], longest),
        )
    if kind in (SimpleNamespace, Namespace):
        attributes = vars(value)
        parts = [take_apart(item, leaves, is_leaf) for item in attributes.values()]
        fill = _mapping_builder({}, tuple(attributes), parts)
        key = _key(kind, tuple(attributes), *[part.key for part in parts])
        return Structure(key, lambda remaining: kind(**fill(remaining)))
    if isinstance(value, Mapping):
        parts = [take_apart(item, leaves, is_leaf) for item in value.values()]
        keys = tuple(value)
        return Structure(_key(kind, keys, *[part.key for part in parts]), _mapping_builder(value, keys, parts))
    if kind is slice:
        parts = [take_apart(item, leaves, is_leaf) for item in (value.start, value.stop, value.step)]
        return Structure(
            _key(kind, *[part.key for part in parts]),
            lambda remaining: slice(*[part.build(remaining) for part in parts]),
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, leaves, is_leaf)
    return _opaque(value)


def take_call_apart(
    args: Tuple[Any, ...], kwargs: Mapping[str, Any], leaves: List[Any], is_leaf: Callable[[Any], bool] = is_tensor
) -> Structure:
    """Do what `take_apart((args, kwargs), ...)` does, faster for the plain arguments that most calls have."""
    found: List[Any] = []
    key: List[Any] = [len(args), *kwargs]
    for value in (*args, *kwargs.values()):
        if is_leaf(value):
            found.append(value)
            key.append(_LEAF)
        elif type(value) in PLAIN:
            key.append((type(value), value))
        else:
            return take_apart((args, dict(kwargs)), leaves, is_leaf)
    leaves += found
    known = tuple(key)
    structure = _CALLS.get(known)
    if structure is None:
        if len(_CALLS) >= _MOST_CALLS:
            _CALLS.clear()
        structure = _CALLS[known] = take_apart((args, dict(kwargs)), [], is_leaf)
    return structure


_CALLS: Dict[Hashable, Structure] = {}
_MOST_CALLS = 4096


def put_together(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Return the value with these leaves; the inverse of `take_apart`."""
    return structure.build(iter(leaves))


_ONE = Structure(_LEAF, lambda remaining: next(remaining))


def _sequence_builder(kind: Any, parts: List[Structure]) -> Callable[[Iterator[Any]], Any]:
    # torch's own named results (torch.return_types) take one sequence, like tuples; namedtuples have _make.
    make = getattr(kind, "_make", kind)
    return lambda remaining: make([part.build(remaining) for part in parts])


def _mapping_builder(value: Any, keys: Tuple[Any, ...], parts: List[Structure]) -> Callable[[Iterator[Any]], Any]:
    kind = type(value)
    if kind in (dict, OrderedDict):
        return lambda remaining: kind(zip(keys, [part.build(remaining) for part in parts]))
    if not isinstance(value, dict):
        # Tokenizers return mappings of their own, of which models read the items.
        return lambda remaining: dict(zip(keys, [part.build(remaining) for part in parts]))
    template = copy.copy(value)
    for key in keys:
        template[key] = None

    def build(remaining: Iterator[Any]) -> Any:
        # A copy keeps what a subclass carries besides its items, as the outputs of transformers' models do.
        built = copy.copy(template)
        for key, part in zip(keys, parts):
            built[key] = part.build(remaining)
        return built

    return build


def _dataclass(value: Any, leaves: List[Any], is_leaf: Callable[[Any], bool]) -> Structure:
    names = tuple(field.name for field in dataclasses.fields(value))
    parts = [take_apart(getattr(value, name), leaves, is_leaf) for name in names]
    kind = type(value)

    def build(remaining: Iterator[Any]) -> Any:
        built = object.__new__(kind)
        for name, part in zip(names, parts):
            object.__setattr__(built, name, part.build(remaining))
        return built

    return Structure(_key(kind, names, *[part.key for part in parts]), build)


def _opaque(value: Any) -> Structure:
    if isinstance(value, np.ndarray):
        raise CaptureError(
            f"A numpy array of shape {value.shape} takes part in the step; a device takes tensors. Convert it with "
            "torch.as_tensor."
        )
    if type(value).__module__ == "transformers.cache_utils":
        raise CaptureError(
            f"A {type(value).__qualname__} keeps in Python what one call computes for the next, which a compiled "
            "program does not. Call model.generate(..., use_cache=False) with inputs padded to one length, since each "
            "length is a program of its own; or generate on the host with a copy, copy.deepcopy(unwrap_model(model))."
        )
    of_tensor = functools.partial(_held_by, value)
    found = contents(value, of_tensor)

    def build(remaining: Iterator[Any]) -> Any:
        if contents(value, of_tensor) != found:
            raise CaptureError(
                f"A {type(value).__qualname__} that takes part in the step was changed between the call that it was "
                "given to and the update of that call, which has yet to be compiled. Change it after optimizer.step(), "
                "or before the call."
            )
        return value

    return Structure(_key(identity(value), found), build)


def _held_by(value: Any, tensor: torch.Tensor) -> Hashable:
    """Return what stands for a tensor within an object: the tensor, if it is a weight of a captured model.

    Raises:
        CaptureError: It is another one.
    """
    if parameter_of(tensor) is not None:
        return Same(tensor)
    remedy = (
        "Make it a part of the model that is prepared."
        if isinstance(value, nn.Module)
        else "Use a tuple, a dict, a dataclass or a types.SimpleNamespace instead."
    )
    raise CaptureError(
        f"A {type(value).__qualname__} holds tensors that take part in the step, one of shape {tuple(tensor.shape)}, "
        f"and they cannot be found in it. {remedy}"
    )


def _key(*parts: Any) -> Hashable:
    return parts
