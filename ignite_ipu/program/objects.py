"""Objects among the arguments of a call or in a batch: what code may read from them, in a comparable form.

A compiled program has what it reads from an object as constants. So an object counts with its contents, however deep
they are: with others it is another program.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType
from typing import Any, Callable, Dict, Hashable, Iterator, List, Tuple

import torch

from ignite_ipu.program.guards.names import BOOKKEEPERS, Named, is_followed
from ignite_ipu.program.guards.values import FUNCTIONS, Reader, Same

__all__ = ["Contents", "contents", "identity"]


def identity(value: Any) -> Hashable:
    """Return what is equal for an object and those that it says it is equal to."""
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return type(value), value


def contents(value: Any, of_tensor: Callable[[torch.Tensor], Hashable]) -> Hashable:
    """Return everything that code may read from an object, in a comparable form.

    Args:
        value: The object.
        of_tensor: Returns what stands for a tensor that it holds.
    """
    return tuple(_Contents(of_tensor).of(value))


class Contents:
    """Contents of an object of a batch that code may read: equal for objects of one class that hold the same.

    Args:
        value: The object.

    Attributes:
        value: The object.
        tensors: The tensors that it holds, which count with their shapes and types.
        opaque: True if nothing can be read from it, so that it is equal to itself alone.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.tensors: List[torch.Tensor] = []
        self._read = list(_Contents(self._of_tensor).of(value))
        self.opaque = isinstance(self._read[0][1], Same)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and self._read == other._read

    def differing(self, other: Contents) -> List[str]:
        """Return the names of the attributes that another object of the class has with other values."""
        mine, theirs = self._by_name(), other._by_name()
        return [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]

    def _by_name(self) -> Dict[str, List[Hashable]]:
        found: Dict[str, List[Hashable]] = {}
        for name, value in self._read[1:]:
            found.setdefault(name.replace("self.", "", 1).partition(".")[0], []).append(value)
        return found

    def _of_tensor(self, tensor: torch.Tensor) -> Hashable:
        self.tensors.append(tensor)
        return torch.Tensor, tensor.shape, tensor.dtype


class _Contents(Reader):
    """Reads what there is at all places within an object; objects are equal there that hold the same."""

    def __init__(self, of_tensor: Callable[[torch.Tensor], Hashable]) -> None:
        self._of_tensor = of_tensor

    def of(self, value: Any) -> Iterator[Tuple[str, Hashable]]:
        """Yield the names of the places, and what is there, beginning with the object itself."""
        yield "", self.read(value)
        for place in Named([("", value)], everything=True).places:
            yield place.name, self.read(place.read())
        function = getattr(value, "__func__", getattr(value, "func", value))
        if isinstance(function, FunctionType):
            for place in Named([("", function)]).places:
                yield place.name, Reader().read(place.read())

    def of_tensor(self, tensor: torch.Tensor) -> Hashable:
        """Return what stands for a tensor."""
        return self._of_tensor(tensor)

    def of_object(self, value: Any) -> Hashable:
        """Return the class of an object whose attributes are at other places, what a method is of, or the object."""
        kind = type(value)
        if isinstance(value, MethodType):
            return kind, self.read(value.__func__), self.read(value.__self__)
        if isinstance(value, partial):
            return kind, self.read(value.func), self.read(value.args), self.read(value.keywords)
        has_any = hasattr(value, "__dict__") or any("__slots__" in vars(each) for each in kind.__mro__)
        is_read = has_any and not isinstance(value, (type, *FUNCTIONS)) and is_followed(kind, BOOKKEEPERS)
        return (kind,) if is_read else Same(value)
