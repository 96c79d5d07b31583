"""Nested values flattened into leaves and a structure that can be compared, and unflattened with other leaves."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn
from torch.distributions.transforms import ExpTransform, Transform

from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.errors import BatchError, CaptureError
from ignite_ipu.program.guards.values import Same
from ignite_ipu.program.objects import contents, contents_of_class
from ignite_ipu.program.tensors.attributes import attributes_on, carrying
from ignite_ipu.program.tensors.iterators import opened_items
from ignite_ipu.program.tensors.trees import PLAIN, Container, attributes_of, opened, opened_object

_MOST = 4096
_INVERSE = type(ExpTransform().inv)  # it is that of a transform, which it holds


class Bounded(Dict[Hashable, Any]):
    """A dictionary for values that can be computed again; it is cleared when it is full."""

    def __setitem__(self, key: Hashable, value: Any) -> None:
        if len(self) >= _MOST:
            self.clear()
        super().__setitem__(key, value)


@dataclasses.dataclass(frozen=True)
class Structure:
    """Structure around the leaves of a nested value; those that differ in their leaves alone have equal keys."""

    key: Hashable
    build: Callable[[Iterator[Any]], Any]


LEAF = Structure(("leaf",), next)
"""The structure of a value that is a leaf."""


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def is_bare_tensor(value: Any) -> bool:
    """Return whether a value is a tensor without attributes; `flatten` takes those of others for parts."""
    return isinstance(value, torch.Tensor) and not attributes_on(value)


def is_tensor_or_array(value: Any) -> bool:
    """Return whether a value is a tensor or an array of numpy, with which functions that the host calls compute."""
    return isinstance(value, (torch.Tensor, np.ndarray))


def flatten(value: Any, leaves: List[Any], is_leaf: Callable[[Any], bool] = is_tensor) -> Structure:
    """Append the leaves of `value` to `leaves` and return the structure around them.

    Tuples (named ones too), lists, deques, slices, mappings and their views, namespaces and dataclasses are looked
    into, with their attributes, and so are other objects with tensors, and transforms of distributions. Anything else
    that is no leaf becomes part of the structure, with its contents.

    Raises:
        BatchError: A container is made by code of C alone.
        CaptureError: An object of another kind holds tensors, or the value is a numpy array or a cache of generation.
    """
    if is_leaf(value):
        leaves.append(value)
        return LEAF
    kind: Any = type(value)
    if kind in PLAIN:
        return Structure((kind, value), lambda remaining: value)
    container = opened(value) or opened_items(value)
    of_class: Hashable = ()
    if container is None:
        if isinstance(value, torch.Tensor):
            return _carrying(value, leaves, is_leaf)
        container = opened_object(value) or _opened_record(value)
        if container is None:
            return _opaque(value)
        of_class = contents_of_class(kind)
    parts = [flatten(part, leaves, is_leaf) for part in container.parts]
    make = container.maker()

    def build(remaining: Iterator[Any]) -> Any:
        if of_class and contents_of_class(kind) != of_class:
            raise _changed(kind)
        return make([part.build(remaining) for part in parts])

    return Structure((kind, of_class, container.keys, *[part.key for part in parts]), build)


def _carrying(tensor: torch.Tensor, leaves: List[Any], is_leaf: Callable[[Any], bool]) -> Structure:
    leaves.append(tensor)
    parts = {name: flatten(part, leaves, is_leaf) for name, part in attributes_on(tensor).items()}

    def build(remaining: Iterator[Any]) -> Any:
        built = next(remaining)
        return carrying(built, {name: part.build(remaining) for name, part in parts.items()})

    return Structure(("tensor", *[(name, part.key) for name, part in parts.items()]), build)


def _opened_record(value: Any) -> Optional[Container]:
    """Return the attributes of an object that holds tensors, such as a distribution, None for others.

    They make an equal object again if its class is written in Python and it does not hold itself. So it is for
    transforms of distributions, too: their methods keep results in them.
    """
    if isinstance(value, (nn.Module, type, np.ndarray)):
        return None
    try:
        if not _holds_tensors(value, (), {}) and not isinstance(value, Transform):
            return None
        object.__new__(type(value))
    except (_HoldsItselfError, TypeError):  # the latter of a class of C code
        return None
    held = _state_of(value)
    return Container(value, tuple(held), list(held.values()))


def _state_of(value: Any) -> Dict[str, Any]:
    """Return the attributes that make an object: of a transform those that PyTorch copies, without its inverse."""
    if isinstance(value, Transform) and not isinstance(value, _INVERSE):
        copied: Callable[[Any], Dict[str, Any]] = Transform.__getstate__
        return copied(value)
    return attributes_of(value)


class _HoldsItselfError(Exception):
    """An object is a part of itself."""


def _holds_tensors(value: Any, within: Tuple[Any, ...], known: Dict[int, Tuple[Any, bool]]) -> bool:
    """Return whether there are tensors in a value that are no weights; `known` has the answers for objects in it."""
    if isinstance(value, torch.Tensor):
        return parameter_of(value) is None
    if type(value) in PLAIN or isinstance(value, (nn.Module, type)):
        return False
    if any(value is each for each in within):
        raise _HoldsItselfError
    if id(value) not in known:
        container = _opened_container(value)
        parts = _state_of(value).values() if container is None else container.parts
        known[id(value)] = value, any([_holds_tensors(part, (*within, value), known) for part in parts])
    return known[id(value)][1]


def objects_in(value: Any) -> List[Any]:
    """Return the objects in a result whose attributes `flatten` finds tensors in."""
    container = None if type(value) in PLAIN or is_tensor(value) else _opened_container(value)
    record = _opened_record(value) if container is None and not is_tensor(value) else None
    found = container or record
    within = [each for part in ([] if found is None else found.parts) for each in objects_in(part)]
    is_kept = isinstance(value, Transform) and not _holds_tensors(value, (), {})  # by some models, as a constant
    return within if record is None or is_kept else [value, *within]


def _opened_container(value: Any) -> Optional[Container]:
    return opened(value) or opened_items(value) or opened_object(value)


def is_flat(value: Any) -> bool:
    """Return whether `flatten` finds all tensors in a value."""
    try:
        flatten(value, [])
    except (BatchError, CaptureError):
        return False
    return True


def leaves_in(value: Any, is_leaf: Callable[[Any], bool] = is_tensor) -> List[Any]:
    """Return the leaves that `flatten` finds."""
    leaves: List[Any] = []
    flatten(value, leaves, is_leaf)
    return leaves


def mapped(value: Any, replace: Callable[[Any], Any], is_leaf: Callable[[Any], bool] = is_tensor) -> Any:
    """Return a nested value with other leaves."""
    leaves: List[Any] = []
    structure = flatten(value, leaves, is_leaf)
    return unflatten(structure, list(map(replace, leaves)))


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Return the value with these leaves; the inverse of `flatten`."""
    return structure.build(iter(leaves))


def refuse_sparse(tensor: torch.Tensor, line: Any) -> None:
    """Refuse a sparse tensor that takes part in a program at a line."""
    if tensor.layout is not torch.strided:
        raise CaptureError(
            f"A tensor of shape {tuple(tensor.shape)} in the layout {tensor.layout} takes part in the step at "
            f"{line}; an IPU takes dense tensors alone. Call to_dense() on it before, for example in collate_fn."
        )


def _opaque(value: Any) -> Structure:
    if isinstance(value, np.ndarray):
        raise CaptureError(
            f"A numpy array of shape {value.shape} takes part in the step; a device takes tensors. Convert it with "
            "torch.as_tensor."
        )
    if type(value).__module__ == "transformers.cache_utils":
        raise CaptureError(
            f"A {type(value).__qualname__} keeps results of one call for the next in Python, which a compiled "
            "program does not. Call model.generate(..., use_cache=False) with inputs padded to one length: each length "
            "is a program of its own. Or generate on the host with a copy, copy.deepcopy(unwrap_model(model))."
        )
    of_tensor = functools.partial(_held_by, value)
    found = contents(value, of_tensor)

    def build(remaining: Iterator[Any]) -> Any:
        if contents(value, of_tensor) != found:
            raise _changed(type(value))
        return value

    return Structure((_identity(value), found), build)


def _changed(kind: type) -> CaptureError:
    return CaptureError(
        f"A {kind.__qualname__} that takes part in the step was changed between the call that it was given to and the "
        "update of that call. The update has yet to be compiled. Change it after optimizer.step(), or before the call."
    )


def _identity(value: Any) -> Hashable:
    """Return a value that is equal for objects that compare equal."""
    try:
        hash(value)
    except TypeError:
        return Same(value)
    return type(value), value


def _held_by(value: Any, tensor: torch.Tensor) -> Hashable:
    """Return the substitute of a tensor within an object: the tensor itself, if it is a weight of a captured model."""
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
