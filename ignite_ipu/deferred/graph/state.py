"""The state of models that recorded operations compute with or write: weights and buffers."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import weakref
from typing import Any, ContextManager, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

import torch

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CLOCK, Operation, is_statistic_of
from ignite_ipu.deferred.graph.owners import Captured, parameter_of
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.modules import NormWithStatistics, all_named_buffers

# By functions that write statistics of captured models, these by name.
_STATISTICS: weakref.WeakKeyDictionary[Operation, Dict[str, torch.Tensor]] = weakref.WeakKeyDictionary()
Values = List[Tuple[torch.Tensor, Optional[torch.Tensor]]]
"""Tensors of a model, each with what a call is to find there; None for what is there now."""


@dataclasses.dataclass(frozen=True)
class Older:
    """Weights before they were changed, taken when `CLOCK` showed a number.

    Attributes:
        values: The weights, each with its value; None if that was not kept.
        uncounted: The ids of those that were written without the notice of captured weights.
        replaced: The ids of those whose memory was replaced, as by `parameter.data = ...`.
        counted: The ids of those whose writes PyTorch has counted.
    """

    taken: int
    values: Sequence[Tuple[torch.Tensor, Optional[torch.Tensor]]]
    uncounted: FrozenSet[int] = frozenset()
    replaced: FrozenSet[int] = frozenset()
    counted: FrozenSet[int] = frozenset()

    @classmethod
    def of(cls, weights: Iterable[torch.Tensor]) -> Older:
        """Return copies of weights, of which the host has the newest values."""
        return cls(CLOCK.now, [(each, plain(each).clone()) for each in weights])

    def with_others(self, later: Older) -> Older:
        """Return these weights with those that only `later` has, which have not changed in between."""
        if len(self.values) >= len(later.values):
            return self
        own = {id(tensor) for tensor, _ in self.values}
        others = [pair for pair in later.values if id(pair[0]) not in own]
        return dataclasses.replace(self, values=[*self.values, *others])


def weights_of(operation: Operation) -> FrozenSet[int]:
    """Return the ids of the parameters and buffers that an operation computes with."""
    if operation.model is not None and operation.signature.modes is not None:
        return frozenset(itertools.chain(operation.model.parameter_ids, touched_buffers(operation)))
    leaves = (leaf for leaf in operation.leaves if type(leaf) is Input and leaf.parameter is not None)
    return frozenset(id(leaf.tensor) for leaf in leaves)


def trained_in(loss: Loss) -> FrozenSet[int]:
    """Return the ids of the parameters that were trained when a loss was computed; it may depend on some alone."""
    found: Set[int] = set()
    for operation in loss.operations:
        modes = operation.signature.modes
        if modes is not None:
            found.update(id(each) for each, trained in zip(modes.of.parameters, modes.trained) if trained)
        leaves = (leaf for leaf in operation.leaves if type(leaf) is Input and leaf.parameter is not None)
        found.update(id(leaf.tensor) for leaf in leaves if leaf.shape.requires_grad)
    return frozenset(found)


def note_statistics(operation: Operation) -> Captured:
    """Note the statistics that a normalisation writes, which is called as a function; returns the model of these."""
    statistics = [leaf for leaf in operation.leaves if type(leaf) is Input and is_statistic_of(leaf, operation)]
    _STATISTICS[operation] = {str(leaf.parameter): leaf.tensor for leaf in statistics}
    assert statistics[0].model is not None
    return statistics[0].model


def model_of(operation: Operation) -> Optional[Captured]:
    """Return the captured model that an operation calls, or of which it writes statistics."""
    found = _STATISTICS.get(operation) if operation.model is None else None
    owner = parameter_of(next(iter(found.values()))) if found else None
    return operation.model if owner is None else owner[0]


def written_buffers(operation: Operation) -> Dict[str, torch.Tensor]:
    """Return the buffers that a call writes, by name."""
    model: Any = operation.model
    if model is None:
        return _STATISTICS.get(operation, {})
    return _buffers_of(operation, operation.signature.writes)


def _parts_of(call: Operation) -> ContextManager[None]:
    """Return a context in which the model of a call consists of its parts of then, if some were replaced."""
    modes = call.signature.modes
    found: ContextManager[None] = contextlib.nullcontext() if modes is None else modes.of.with_parts_of_before()
    return found


def _buffers_of(call: Operation, names: Sequence[str]) -> Dict[str, torch.Tensor]:
    """Return those of a call's buffers that have some names.

    Raises:
        CaptureError: The model has other parts since, and some have gone.
    """
    if not names:
        return {}
    model: Any = call.model
    with _parts_of(call):
        buffers = dict(all_named_buffers(model.model))
    gone = [name for name in names if name not in buffers]
    if gone:
        raise CaptureError(
            f"The call of {model.name} at {call.line} reads or writes {listed(gone)}, and at {current_line()} the "
            "model has no such buffers any more. Replace, wrap or remove parts of a model after optimizer.step()."
        )
    return {name: buffers[name] for name in names}


def written_ids(operation: Operation) -> FrozenSet[int]:
    """Return the ids of the buffers that a call writes."""
    return frozenset(map(id, written_buffers(operation).values()))


def is_statistic(operation: Operation, name: str) -> bool:
    """Return whether a buffer is a batch statistic, which nothing reads that a call in training mode computes."""
    model: Any = operation.model
    return isinstance(model.model.get_submodule(name.rpartition(".")[0]), NormWithStatistics)


def read_buffers(operation: Operation) -> FrozenSet[int]:
    """Return the ids of the buffers that a call computes its results with: not the batch statistics that it writes.

    A function has those that are its operands.
    """
    model: Any = operation.model
    if model is None:
        buffers = (leaf for leaf in operation.leaves if type(leaf) is Input and leaf.is_buffer)
        return frozenset(id(leaf.tensor) for leaf in buffers if not is_statistic_of(leaf, operation))
    writes, read = operation.signature.writes, _buffers_of(operation, operation.signature.reads)
    with _parts_of(operation) if read else contextlib.nullcontext():
        own = [each for name, each in read.items() if name not in writes or not is_statistic(operation, name)]
    return frozenset(map(id, own))


def touched_buffers(operation: Operation) -> FrozenSet[int]:
    """Return the ids of the buffers that a call reads or writes."""
    return read_buffers(operation) | written_ids(operation)
