"""The structure of a batch: flattened for the device, and compared with the compiled one.

A compiled model takes tensors only, each with samples along dimension 0. A user's batch may nest tensors in tuples,
lists, dictionaries, dataclasses and other records and hold other values beside them. One rule covers those:

- a number (not a bool) and a 0-dimensional tensor may change from call to call: they travel as tensors with one entry
  per micro-batch, and the model sees a 0-dimensional tensor;
- a bool, a string, None and the like become part of the compiled program and may not change afterwards;
- any other object is part of the compiled program, too, with all its contents. One with tensors is handed to PopTorch
  as it is, for the parser registered for its type.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import numbers
from typing import Any, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

from ignite_ipu.errors import BatchError
from ignite_ipu.program.guards.values import Same
from ignite_ipu.program.micro_batches import PerMicroBatch
from ignite_ipu.program.objects import contents
from ignite_ipu.program.tensors.attributes import attributes_on, carrying
from ignite_ipu.program.tensors.trees import PLAIN, Make, opened, opened_record

_FROZEN = (*(PLAIN - {int, float}), np.bool_, enum.Enum, slice, range)
_OBJECTS = ("object", "constant")
_TAKEN = ("rows", "scalar", "object")
_UNSUPPORTED = (torch.bfloat16, torch.complex64, torch.complex128)
_INT32 = torch.iinfo(torch.int32)


@dataclasses.dataclass(frozen=True)
class _Node:
    """One place in a batch's structure.

    Attributes:
        kind: `rows`, `scalar` or `object` where a value was taken out; `frozen` or `constant`; `container`.
        type: Class of the value or container; None for tensors, which may be of any.
        value: The frozen value, the contents of an object, or the keys of a container.
        make: Makes such a container of other parts.
    """

    kind: str
    type: Any = None
    value: Any = None
    children: Tuple[_Node, ...] = ()
    make: Any = dataclasses.field(default=None, compare=False)

    def inside(self, path: str) -> Iterator[Tuple[str, _Node]]:
        """Yield this place and those inside it, each with how messages write the way to it."""
        yield path, self
        for key, child in zip(_keys(self.value if self.children else (), self.children), self.children):
            yield from child.inside(f"{path}[{key}]")


_ROWS = _Node("rows")
_SCALAR = _Node("scalar")


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """Layout of a batch: the places of its values, their containers, and the tensors' shapes and types."""

    _names: Tuple[str, ...]
    _parts: Tuple[_Node, ...]
    _paths: Tuple[str, ...]
    _tensors: Tuple[Any, ...]

    @classmethod
    def of(cls, names: Sequence[str], parts: Sequence[Any], micro_batches: int) -> Tuple[BatchLayout, List[Any]]:
        """Flatten a batch; return its layout, and the values to call the compiled model with.

        Messages call its parts by `names`, such as `x` and `y`; one call's inputs hold D * A * (R // G) micro-batches.
        A `BatchError` where a tensor does not divide into these, is empty, or has a type that the device lacks.
        """
        taken: List[Tuple[str, Any]] = []
        nodes = tuple(_flatten(part, name, taken) for name, part in zip(names, parts))
        leaves = [_leaf(value, path, micro_batches) for path, value in taken]
        tensors = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else None for leaf in leaves)
        return cls(tuple(names), nodes, tuple(path for path, _ in taken), tensors), leaves

    @functools.cached_property
    def _is_flat(self) -> bool:
        return all(part is _ROWS for part in self._parts)

    @functools.cached_property
    def rows(self) -> Optional[int]:
        """Rows of all tensors, None if they have different numbers: then rows are no samples."""
        kinds = (node.kind for part in self._parts for _, node in part.inside("") if node.kind in _TAKEN)
        found = {tensor[0][0] for kind, tensor in zip(kinds, self._tensors) if kind == "rows" and tensor}
        return int(found.pop()) if len(found) == 1 else None

    def leaves_of(self, parts: Sequence[Any]) -> Optional[List[Any]]:
        """Return the rest of `of`'s result for tensors that have this layout; None if that is not enough to decide."""
        if not self._is_flat:
            return None
        given = [
            (part.shape, part.dtype) if type(part) is torch.Tensor and not part.__dict__ else None for part in parts
        ]
        return list(parts) if tuple(given) == self._tensors else None

    def rebuild(self, leaves: Sequence[Any]) -> Tuple[Any, ...]:
        """Return the batch's parts with the given values in place of the ones taken out, in order."""
        remaining = iter(leaves)
        return tuple(_unflatten(node, remaining) for node in self._parts)

    def check_parsed(self, leaves: Sequence[Any]) -> None:
        """Refuse objects whose tensors PopTorch has not found: they came to the traced forward as they are."""
        held_by = [node.value for part in self._parts for _, node in part.inside("") if node.kind == "object"]
        given = {id(leaf) for leaf in leaves if not isinstance(leaf, torch.Tensor)}
        for held in held_by:
            if held.tensors and id(held.value) in given:
                name = type(held.value).__qualname__
                raise BatchError(
                    f"A batch holds a {name} with tensors, one of shape {tuple(held.tensors[0].shape)}, which "
                    "PopTorch does not find: they would be constants of the compiled program. Return a tuple, list or "
                    "dictionary of them from prepare_batch, or register a parser by poptorch.registerCustomArgParser."
                )

    def describe(self) -> Dict[str, str]:
        """Return the properties that a program for this batch depends on: shape and type, or value, by place."""
        found = {path: _describe(tensor) for path, tensor in zip(self._paths, self._tensors)}
        for path, node in (each for name, part in zip(self._names, self._parts) for each in part.inside(name)):
            if node.kind in ("frozen", "constant"):
                found[path] = _named(node)
        return found

    def differs_in_shapes(self, other: BatchLayout) -> bool:
        """Return whether another batch has tensors of other shapes, and differs in nothing else."""
        if self._tensors == other._tensors or self._parts != other._parts or len(self._tensors) != len(other._tensors):
            return False
        return all(mine and theirs and mine[1] == theirs[1] for mine, theirs in zip(self._tensors, other._tensors))

    def shapes(self) -> str:
        """Return the shapes of the tensors, by place."""
        return ", ".join(f"{path} {tuple(tensor[0])}" for path, tensor in zip(self._paths, self._tensors) if tensor)

    def check(self, other: BatchLayout) -> None:
        """Refuse a batch that differs from this one, the compiled one, in a property that a program fixes."""
        if self._parts != other._parts:
            for name, expected, given in zip(self._names, self._parts, other._parts):
                _compare(expected, given, name)
        if self._tensors != other._tensors:
            for path, expected, given in zip(self._paths, self._tensors, other._tensors):
                if expected != given:
                    raise BatchError(
                        f"{path} is now {_describe(given)}, but the model was compiled for {_describe(expected)}: a "
                        "compiled program has fixed shapes and types. Keep them constant (drop or fill up an "
                        "incomplete batch, pad to one length, convert in prepare_batch), or recompile."
                    )


class _Contents:
    """Contents of an object of a batch that code may read: equal for objects of one class that hold the same.

    Its tensors count with their shapes and types. One that cannot be read (`opaque`) is equal to itself alone.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.tensors: List[torch.Tensor] = []
        self._read = contents(value, self._of_tensor)
        self.opaque = isinstance(self._read, Same)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Contents) and self._read == other._read

    def differing(self, other: _Contents) -> List[str]:
        """Return the names of the attributes that another object of the class has with other values."""
        mine, theirs = (dict(getattr(each._read, "attributes", ())) for each in (self, other))
        return [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]

    def _of_tensor(self, tensor: torch.Tensor) -> Hashable:
        self.tensors.append(tensor)
        return torch.Tensor, tensor.shape, tensor.dtype


def _flatten(value: Any, path: str, taken: List[Tuple[str, Any]]) -> _Node:
    if isinstance(value, torch.Tensor):
        taken.append((path, value))
        node = _ROWS if value.dim() else _SCALAR
        attributes = attributes_on(value)
        return _carrying(node, attributes, path, taken) if attributes else node
    if isinstance(value, _FROZEN):
        return _Node("frozen", type(value), value)
    if isinstance(value, (numbers.Real, PerMicroBatch)):
        taken.append((path, value))
        return _SCALAR
    container = opened(value) or opened_record(value)
    if container is not None:
        places = zip(_keys(container.keys, container.parts), container.parts)
        children = tuple(_flatten(part, f"{path}[{key}]", taken) for key, part in places)
        return _Node("container", type(container.value), container.keys, children, container.maker())
    if isinstance(value, np.ndarray):
        raise BatchError(
            f"{path} is a numpy array of shape {value.shape}; a compiled model takes tensors. Convert it in the "
            "collate_fn or in prepare_batch with torch.as_tensor."
        )
    held = _Contents(value)
    if not held.tensors and not held.opaque:
        return _Node("constant", type(value), held)
    taken.append((path, value))
    return _Node("object", type(value), held)


def _carrying(node: _Node, attributes: Dict[str, Any], path: str, taken: List[Tuple[str, Any]]) -> _Node:
    """Return the place of a tensor with attributes."""
    names = tuple(attributes)
    children = (node, *[_flatten(part, f"{path}.{name}", taken) for name, part in attributes.items()])
    make: Make = lambda parts: carrying(parts[0], dict(zip(names, parts[1:])))  # noqa: E731
    return _Node("container", torch.Tensor, ("values", *names), children, make)


def _keys(keys: Sequence[Any], parts: Sequence[Any]) -> Sequence[Any]:
    """Return how messages write the places in a container."""
    return list(map(repr, keys)) or range(len(parts))


def _unflatten(node: _Node, leaves: Iterator[Any]) -> Any:
    if node.kind == "rows" or node.kind == "object":
        return next(leaves)
    if node.kind == "scalar":
        return next(leaves).reshape(())
    if node.kind == "frozen":
        return node.value
    if node.kind == "constant":
        if _Contents(node.value.value) != node.value:
            raise BatchError(
                f"A {node.type.__qualname__} of the batch that a model was compiled for has changed since then."
            )
        return node.value.value
    return node.make([_unflatten(child, leaves) for child in node.children])


def _leaf(value: Any, path: str, micro_batches: int) -> Any:
    """Return the device's input for a value."""
    if isinstance(value, torch.Tensor):
        if value.dtype in _UNSUPPORTED:
            raise BatchError(
                f"{path} has type {value.dtype}, which an IPU does not have. Convert it in prepare_batch, for example "
                "with .float() or .half()."
            )
        if not value.dim():
            return value.reshape(1).expand(micro_batches).contiguous()
        if not value.numel():
            raise BatchError(f"{path} has shape {tuple(value.shape)}; a compiled model takes no empty tensors.")
        if value.shape[0] % micro_batches:
            raise BatchError(
                f"{path} has shape {tuple(value.shape)}; its {value.shape[0]} rows do not divide into the "
                f"{micro_batches} micro-batches of one call (deviceIterations x gradientAccumulation x "
                f"replicationFactor). Give it a multiple of {micro_batches} rows, or, if it has no dimension of "
                "samples, make it a buffer of the model."
            )
        return value
    if isinstance(value, PerMicroBatch):
        values = value.tensor()
        if value.numbers and not values.is_floating_point():
            for each in values.tolist():
                _leaf(each, path, micro_batches)
            return values.to(torch.int32)
        return values
    if not isinstance(value, numbers.Real):
        return value
    if isinstance(value, numbers.Integral):
        if not _INT32.min <= int(value) <= _INT32.max:
            raise BatchError(f"{path} is {value}, which does not fit the 32 bits of an IPU's integers.")
        return torch.full((micro_batches,), int(value), dtype=torch.int32)
    return torch.full((micro_batches,), float(value), dtype=torch.float32)


def _compare(expected: _Node, given: _Node, path: str) -> None:
    """Raise for the first difference between two structures, if there is one."""
    if expected == given:
        return
    if expected.kind == given.kind == "frozen":
        raise BatchError(
            f"{path} is now {given.value!r}, but the model was compiled with {expected.value!r}: such a value is part "
            "of the compiled program. Keep it constant, or turn it into a number or a tensor with one row per sample."
        )
    if (expected.kind, expected.type) != (given.kind, given.type):
        raise BatchError(
            f"{path} is now {_named(given)}, but the model was compiled for {_named(expected)}. Keep the structure of "
            "batches constant."
        )
    if expected.kind in _OBJECTS:
        names = expected.value.differing(given.value)
        raise BatchError(
            f"{path}, {_named(expected)}, now holds other values than the one that the model was compiled with"
            f"{': ' if names else ''}{', '.join(names)}. An object is part of the compiled program, with all that it "
            "holds. Keep it as it is, and hand over what changes as a number or a tensor with one row per sample."
        )
    if expected.value != given.value:
        raise BatchError(
            f"{path} now has the keys {list(given.value)}, but the model was compiled for {list(expected.value)}, in "
            "that order. Keep the keys of batches constant."
        )
    if len(expected.children) != len(given.children):
        raise BatchError(
            f"{path} now has {len(given.children)} items, but the model was compiled for {len(expected.children)}. "
            "Keep the structure of batches constant."
        )
    for key, mine, theirs in zip(_keys(expected.value, expected.children), expected.children, given.children):
        _compare(mine, theirs, f"{path}[{key}]")


def _named(node: _Node) -> str:
    if node.kind == "rows":
        return "a tensor with rows"
    if node.kind == "scalar":
        return "a number or 0-dimensional tensor"
    if node.kind == "frozen":
        return repr(node.value)
    return f"a {node.type.__qualname__}"


def _describe(tensor: Any) -> str:
    if tensor is None:
        return "an object"
    shape, dtype = tensor
    return f"a {dtype} tensor of shape {tuple(shape)}"
