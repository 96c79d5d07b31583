"""Deferred tensors among nested values, as the arguments and results of calls have them."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import torch

from ignite_ipu.deferred.graph.leaves import Input, Number, Shape
from ignite_ipu.deferred.graph.operations import Value
from ignite_ipu.deferred.graph.structure import is_tensor_or_array, leaves_in, mapped
from ignite_ipu.deferred.tensor.inputs import input_of
from ignite_ipu.deferred.tensor.reads import read
from ignite_ipu.deferred.tensor.written_tensors import answered
from ignite_ipu.program.user_code import Line


class Deferred(torch.Tensor):
    """A tensor that stands for a value of the step; its only subclass records operations on it.

    Attributes:
        value: Its current value.
        origin: The ordinary tensor that it replaces after `total += loss`.
    """

    value: Value
    origin: Optional[torch.Tensor] = None


def resolved(structure: Any, what: str = "its value", views: Sequence[Any] = ()) -> Any:
    """Return nested values with every deferred tensor replaced by its value; `what` says in words how it is read.

    These views of weights are replaced by tensors of the host, through which code may write.
    """
    written = set(map(id, views))

    def known(leaf: Any) -> Any:
        return read(leaf.value, what) if isinstance(leaf, Deferred) and id(leaf) not in written else leaf

    found = mapped(structure, known, is_tensor_or_array)
    if not views:
        return found
    hosts = {id(view): view.memory.of_host() for view in views}  # a read may have changed the weights
    return mapped(found, lambda leaf: hosts.get(id(leaf), leaf), is_tensor_or_array)


def deferred_values(structure: Any) -> List[Value]:
    """Return the parts of nested values that have no value yet."""
    return [value for value in all_values(structure) if not value.known]


def awaited_values(structure: Any) -> List[Value]:
    """Return the parts of nested values that have no value yet, or through which gradients can flow."""
    return [value for value in all_values(structure) if value.live or not value.known]


def all_values(structure: Any) -> List[Value]:
    """Return the values of the deferred tensors in nested values."""
    found = map(answered, leaves_in(structure, is_tensor_or_array))
    return [leaf.value for leaf in found if isinstance(leaf, Deferred)]


def known_in(structure: Any) -> Any:
    """Return nested values with those deferred tensors replaced by their values that need no update."""

    def known(leaf: Any) -> Any:
        return leaf.value.get() if isinstance(leaf, Deferred) and leaf.value.known else leaf

    return mapped(structure, known, is_tensor_or_array)


def as_leaf(value: Any, line: Line) -> Any:
    """Return the reference of a recorded operation to a tensor or number: `Value`, `Input` or `Number`."""
    value = answered(value)
    if isinstance(value, Deferred):
        known = value.value
        if not known.known or (torch.is_grad_enabled() and known.live):
            return known
        leaf = Input(known.get(), Shape.of(known.get(), False))
        if known.shape.requires_grad and torch.is_grad_enabled():
            leaf.spent = known.operation.line
        return leaf
    if isinstance(value, (float, int)):
        return Number(value)
    return input_of(value, line)
