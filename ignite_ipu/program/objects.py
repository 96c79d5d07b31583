"""Objects among the arguments of a call or in a batch: the values that code may read from them, in a comparable form.

A compiled program has the values that it reads from an object as constants. So an object counts with its contents at
any depth: other contents need another program.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType
from typing import Any, Callable, Dict, FrozenSet, Hashable, NamedTuple, Tuple

import torch

from ignite_ipu.program.guards.names import Named
from ignite_ipu.program.guards.values import BOOKKEEPERS, READ, Reader, Same, is_followed
from ignite_ipu.program.tensors.trees import attributes_of

_WITHOUT_TORCH = BOOKKEEPERS | {"torch"}  # whose distributions have a switch of their class for checks


def contents(value: Any, of_tensor: Callable[[torch.Tensor], Hashable]) -> Hashable:
    """Return everything that code may read from an object, comparable; `of_tensor` gives a tensor's substitute."""
    return _Contents(of_tensor).read(value)


def contents_of_class(kind: type) -> Hashable:
    """Return what code may read from a class of the user's, functions aside, comparable; nothing is empty."""
    reader = _Contents(Same)
    return tuple([(name, reader.read(each)) for name, each in _members(kind, _WITHOUT_TORCH).items()])


class _Read(NamedTuple):
    of: Hashable
    attributes: Tuple[Tuple[str, Hashable], ...]


class _Contents(Reader):
    """Reads the contents of objects; objects with the same contents are equal."""

    def __init__(self, of_tensor: Callable[[torch.Tensor], Hashable]) -> None:
        self._of_tensor = of_tensor
        self._known: Dict[int, Tuple[int, Any]] = {}

    def of_tensor(self, tensor: torch.Tensor) -> Hashable:
        return self._of_tensor(tensor)

    def of_object(self, value: Any) -> Hashable:
        """Return the class of an object and the contents of its attributes; a repeated object becomes a number."""
        if id(value) in self._known:
            return self._known[id(value)][0]
        self._known[id(value)] = len(self._known), value
        if isinstance(value, FunctionType):
            named = Named([("", value)]).values()
            return _Read(Same(value), tuple((name, Reader().read(each)) for name, each in named))
        held = _attributes(value)
        if not held and not (hasattr(value, "__dict__") and is_followed(type(value), BOOKKEEPERS)):
            return Same(value)
        of: Any = Same(value) if isinstance(value, type) else type(value)
        return _Read(of, tuple((name, self.read(each)) for name, each in held.items()))


def _attributes(value: Any) -> Dict[str, Any]:
    """Return the attributes of an object, and those of its class that are no functions."""
    if isinstance(value, MethodType):
        return {name: getattr(value, name) for name in ("__func__", "__self__")}
    if isinstance(value, partial):
        return {name: getattr(value, name) for name in ("func", "args", "keywords")}
    found = _members(value)
    return {**found, **attributes_of(value)} if is_followed(type(value), BOOKKEEPERS) else found


def _members(value: Any, passive: FrozenSet[str] = BOOKKEEPERS) -> Dict[str, Any]:
    bases = (value if isinstance(value, type) else type(value)).__mro__
    members = [member for base in reversed(bases) if is_followed(base, passive) for member in vars(base).items()]
    return {name: member for name, member in members if isinstance(member, READ) and not name.startswith("__")}
