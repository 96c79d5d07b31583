"""Views of weights that a loop keeps: their memory is that of the weight, so each use has its current values."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ignite_ipu.deferred.graph.call_signatures import CallSignature
from ignite_ipu.deferred.graph.leaves import Input, Number
from ignite_ipu.deferred.graph.operations import USES, Operation, Value
from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.graph.structure import leaves_in, unflatten
from ignite_ipu.deferred.graph.uses import keep_weights
from ignite_ipu.deferred.tensor.inputs import input_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of


class _Step(NamedTuple):
    """A function of a view: its leaves, the position of the viewed tensor among them, and the number of the result."""

    signature: CallSignature
    leaves: Sequence[Any]
    position: int
    result: int


class WeightMemory:
    """The part of a weight's memory that a view shows.

    Args:
        weight: The weight.
        line: The line that made the view.
        steps: The functions that lead from the weight to the view.
    """

    def __init__(self, weight: torch.Tensor, line: Line, steps: Tuple[_Step, ...] = ()) -> None:
        self._weight, self._line, self._steps = weight, line, steps
        storage: Any = StorageWeakRef  # of which no other memory gets the address as long as this lives
        self._storage = storage(plain(weight).untyped_storage())

    def record(self) -> Value:
        """Record the view anew, of the weight as it is now."""
        self._check()
        leaf: Any = input_of(self._weight, self._line)
        for signature, leaves, position, result in self._steps:
            given = [leaf if each == position else other for each, other in enumerate(leaves)]
            leaf = Operation(signature, None, given, self._line).give()[result]
        assert isinstance(leaf, Value)
        return leaf

    def of_host(self) -> torch.Tensor:
        """Return the view as a tensor of the host, with the newest values, through which code is about to write."""
        self._check()
        owner = parameter_of(self._weight)
        if owner is not None:
            owner[0].loop.note_write([self._weight])
            if USES:
                keep_weights([owner[0].loop])
        tensor = self._weight
        with torch.no_grad():
            for signature, leaves, position, result in self._steps:
                given = [tensor if each == position else _tensor_of(other) for each, other in enumerate(leaves)]
                args, kwargs = unflatten(signature.structure, given)
                assert signature.function is not None
                tensor = leaves_in(signature.function(*args, **kwargs))[result]
        return tensor

    def part(self, operation: Operation, position: int, index: int) -> WeightMemory:
        """Return the memory that a function's result shows, of this at a position among its leaves."""
        leaves = [None if each == position else leaf for each, leaf in enumerate(operation.leaves)]
        step = _Step(operation.signature, leaves, position, index)
        return WeightMemory(self._weight, operation.line, (*self._steps, step))

    def _check(self) -> None:
        if self._storage.cdata != memory_of(plain(self._weight)):
            raise CaptureError(
                f"A view of a weight, made at {self._line}, is used at {current_line()}, and the weight has got other "
                "memory since, as by parameter.data = tensor. PyTorch's view keeps the previous memory. Take the view "
                "anew, or a copy of it with clone()."
            )


def viewed_weights(operation: Operation) -> List[Optional[WeightMemory]]:
    """Return, for each result of a function, the memory of a weight that it shows; None for all others."""
    leaves = operation.leaves
    memories = [_memory_of_leaf(leaf, operation.line) for leaf in leaves]
    if not any(memories):
        return [None] * len(operation.signature.shapes)
    places = [0] * len(operation.signature.shapes) if len(leaves) == 1 else _places(operation)
    found: List[Optional[WeightMemory]] = []
    for index, (place, shape) in enumerate(zip(places, operation.signature.shapes)):
        memory = memories[place] if shape.aliases and place is not None else None
        found.append(None if memory is None or place is None else memory.part(operation, place, index))
    return found


def _memory_of_leaf(leaf: Any, line: Line) -> Optional[WeightMemory]:
    if type(leaf) is Value:
        found: Optional[WeightMemory] = getattr(leaf.handle(), "memory", None)
        return found
    if type(leaf) is Input:
        weight = leaf.weight if leaf.parameter is None else leaf.tensor
        return None if weight is None else WeightMemory(weight, line)
    return None


def _places(operation: Operation) -> List[Optional[int]]:
    """Return, for each result of a function of several tensors, which of them it is a view of."""
    signature = operation.signature
    metas = [leaf.value if type(leaf) is Number else leaf.shape.meta() for leaf in operation.leaves]
    args, kwargs = unflatten(signature.structure, metas)
    assert signature.function is not None
    with DisableTorchFunctionSubclass(), torch.set_grad_enabled(signature.grad):
        results = leaves_in(signature.function(*args, **kwargs))
    memories = {memory_of(meta): place for place, meta in enumerate(metas) if isinstance(meta, torch.Tensor)}
    return [memories.get(memory_of(result)) for result in results]


def _tensor_of(leaf: Any) -> Any:
    if type(leaf) is Value:
        return leaf.get()
    return leaf.value if type(leaf) is Number else leaf.tensor
