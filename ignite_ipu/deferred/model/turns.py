"""Programs of several optimizers over the same models: what the update of one needs of the steps that others made.

Each optimizer's step is a program of its own, which computes everything that leads to its weights. An operation that
two of them need, as a generator's call for the discriminator's update and then for its own, runs in both.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import (
    Any,
    Callable,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
)

import torch
from torch.nn.modules.batchnorm import _NormBase

from ignite_ipu.deferred.graph.operations import CLOCK, Operation, name_of
from ignite_ipu.deferred.graph.reach import Reach
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.session import IPUSession
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["Older", "begin_again", "forget", "is_statistic", "keep_buffers", "values_of_then"]

_logger = logging.getLogger("ignite_ipu")
Values = List[Tuple[torch.Tensor, Optional[torch.Tensor]]]
"""Tensors of a model, each with what a call is to find there; None for what is there now."""


class _Turn(Protocol):
    """Updates of another optimizer."""

    reach: Optional[Reach]
    stepped: int


@dataclasses.dataclass(frozen=True)
class Older:
    """Weights of one optimizer before its step.

    Attributes:
        taken: When that was, by `CLOCK`.
        values: The weights.
    """

    taken: int
    values: Sequence[Tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def of(cls, session: IPUSession, own: FrozenSet[int]) -> Older:
        """Return copies of some parameters of now."""
        session.weights.to_host()
        return cls(CLOCK.now, [(each, plain(each).clone()) for each in session.weights.tensors if id(each) in own])


def values_of_then(operations: Sequence[Operation], older: Mapping[Any, Older], others: Iterable[_Turn]) -> Values:
    """Return the weights of other optimizers with which operations were recorded, where these have stepped since.

    Raises:
        CaptureError: They are gone.
    """
    values: Values = []
    for other in others:
        assert other.reach is not None
        used = [operation for operation in operations if other.reach.uses(operation)]
        stale = [operation for operation in used if operation.number <= other.stepped]
        if not stale:
            continue
        known = older.get(other)
        if known is None or any(operation.number > known.taken for operation in used):
            raise CaptureError(
                f"The update at {current_line()} needs what was computed at {stale[0].line} with weights that another "
                "optimizer has changed since, and a device computes a loss together with its update. Compute it after "
                "that optimizer's step(), or call backward() on it before, and step() of both without another in "
                "between."
            )
        values += known.values
    return values


def keep_buffers(
    operations: Iterable[Operation],
    awaited: Container[Operation],
    keeps: Callable[[Operation], bool],
    weights: Weights,
) -> None:
    """Keep what is in the buffers that calls write, where they may run again for the update of another optimizer.

    Args:
        operations: Those of the update.
        awaited: Operations that other updates wait for.
        keeps: Tells whether gradients may flow through an operation once more.
        weights: The weights.
    """
    device = set(operations)
    written: Set[int] = set()
    for operation in operations:
        if operation.done or not operation.signature.writes:
            continue
        buffers = _written(operation)
        results = [reference() for reference in operation.results]
        needed = any(value is not None and value.is_needed(device) for value in results)
        if operation in awaited or (needed and keeps(operation)):
            weights.to_host()
            operation.before = {name: plain(each).clone() for name, each in buffers.items() if id(each) not in written}
        written.update(map(id, buffers.values()))


def begin_again(operations: Sequence[Operation]) -> Values:
    """Return the buffers that calls write that have run before, with what was there then: they write them once.

    Raises:
        CaptureError: What was there then is not known, or other calls of the update write them, too.
    """
    again = [operation for operation in operations if operation.done]
    for operation in again:
        if _draws(operation) and not operation.signature.warned:
            operation.signature.warned = True
            _logger.warning(
                "%s at %s is part of two optimizers' updates, and draws random numbers anew for the second: there it "
                "has other values than the first has used. To have the same draws in both, draw in the loop, from "
                "inputs of the model.",
                operation.name,
                operation.line,
            )
    written = {id(each) for one in operations if not one.done for each in _written(one).values()}
    values: Dict[int, Tuple[torch.Tensor, Optional[torch.Tensor]]] = {}
    for operation in again:
        for name, tensor in _written(operation).items():
            then = operation.before.get(name)
            unknown = then is None and id(tensor) not in values and not is_statistic(operation, name)
            if unknown or id(tensor) in written:
                raise CaptureError(
                    f"The update at {current_line()} computes {operation.name} at {operation.line} once more, which "
                    f"has written the buffer {name} for another optimizer's update, and other calls write it, too: it "
                    "would hold something else. Call the model again for this update; or, if it is not to use those "
                    "gradients, clear them by zero_grad() before."
                )
            values.setdefault(id(tensor), (tensor, then))
    return list(values.values())


def forget(operations: Iterable[Operation]) -> None:
    """Let go of what operations were computed from, through which no gradients flow any more."""
    for operation in operations:
        if operation.done:
            operation.finish()


def _written(operation: Operation) -> Dict[str, torch.Tensor]:
    model: Any = operation.model
    buffers = dict(model.model.named_buffers()) if operation.signature.writes else {}
    return {name: buffers[name] for name in operation.signature.writes}


def is_statistic(operation: Operation, name: str) -> bool:
    """Tell whether a buffer is a batch statistic, which nothing reads that a call in training mode computes."""
    model: Any = operation.model
    return isinstance(model.model.get_submodule(name.rpartition(".")[0]), _NormBase)


def _draws(operation: Operation) -> bool:
    signature = operation.signature
    if signature.function is None:
        return signature.draws
    packet = getattr(torch.ops.aten, name_of(signature.function), None)
    overloads = [] if packet is None else [getattr(packet, name) for name in packet.overloads()]
    return any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)
