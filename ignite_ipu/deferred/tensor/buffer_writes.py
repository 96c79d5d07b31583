"""Buffers that a model's forward writes into, such as the statistics of batch normalisation.

PyTorch writes them in the call; the device writes them with the update that the call is part of, if they are those of a
captured model.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Mapping, Sequence, Set

import torch
import torch.nn.functional as F

from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.owners import Captured, parameter_of
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.structure import words
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.user_code import Line, current_line

__all__ = ["NORMALISATIONS", "BufferWrites", "refuse_statistics"]

# Functions that write running statistics, those of TorchScript too.
NORMALISATIONS = words(
    "batch_norm instance_norm native_batch_norm native_batch_norm.default _native_batch_norm_legit "
    "_native_batch_norm_legit.default"
)
# Where in the arguments of those in C++ the statistics are, and whether they are written.
_STATISTICS = slice(3, 6)


class BufferWrites:
    """The calls of a captured model that would have written buffers by now, and wait for their update.

    Those that no update will be of are made on the host, before anything is computed from what they write.

    Attributes:
        waiting: The calls, by their numbers.
    """

    def __init__(self) -> None:
        self.waiting: Dict[int, Operation] = {}
        self._passed: Set[int] = set()  # those that have waited while another optimizer stepped

    def note(self, operation: Operation) -> None:
        """Note a call that writes."""
        self.waiting[operation.number] = operation

    def take_over(self, other: BufferWrites) -> None:
        """Take over the calls of a model that is a part of this one now."""
        self.waiting.update(other.waiting)

    def check_evaluation(self, model: Captured) -> None:
        """Refuse an evaluation that would use buffers from before.

        Raises:
            CaptureError: A call waits.
        """
        self._make_up([call for call in self.waiting.values() if not _is_awaited(call)], ())
        if self.waiting:
            first = self._first()
            raise CaptureError(
                f"{model.name} is evaluated at {current_line()}, but its call in training mode at {first}, as batch "
                "statistics are, and waits for optimizer.step(). PyTorch would evaluate with what it has written; the "
                "device writes it with the update. Evaluate after optimizer.step()."
            )

    def check_update(self, losses: Sequence[Loss], model: Captured, several: bool = False) -> None:
        """Refuse an update that leaves out calls from before.

        Args:
            losses: What the update is of.
            model: The model.
            several: Whether a call may wait for the update of another optimizer, if nobody writes before it does.

        Raises:
            CaptureError: A call that writes is not what the losses were computed from.
        """
        operations = [operation for loss in losses for operation in loss.operations]
        for operation in operations:
            self.waiting.pop(operation.number, None)
        waits = {call for call in self.waiting.values() if several and _is_awaited(call)}
        self._make_up([call for call in self.waiting.values() if call not in waits], operations)
        self._passed = set(self.waiting)
        if any(call not in waits or not _may_wait(call, operations) for call in self.waiting.values()):
            first = self._first()
            self.waiting.clear()
            raise CaptureError(
                f"The call of {model.name} in training mode at {first}, as batch statistics are, but no loss of the "
                f"update at {current_line()} was computed from it, and it cannot be made up for on the host. "
                "For a forward pass without training, call model.eval() and use torch.no_grad(); leave out a batch "
                "before the model is called."
            )

    def _make_up(self, calls: Sequence[Operation], losses: Sequence[Operation]) -> None:
        """Make calls on the host, as far as what they are computed from is known, and none before has yet to write."""
        for call in calls:
            before = [*losses, *(each for each in self.waiting.values() if each not in calls)]
            late = any(each.number < call.number and _write_the_same(each, call) for each in before)
            if late or call.number in self._passed or call.model is None or not call.model.make_up_for(call):
                return
            del self.waiting[call.number]

    def _first(self) -> str:
        call = next(iter(self.waiting.values()))
        return f"{call.line} writes buffers ({listed(call.signature.writes)})"


def _is_awaited(call: Operation) -> bool:
    """Tell whether somebody has what a call returned, so that it may go backward."""
    return call.problem is None and bool(call.values)


def _write_the_same(one: Operation, other: Operation) -> bool:
    return one.model is other.model and bool({*one.signature.writes} & {*other.signature.writes})


def _may_wait(call: Operation, others: Sequence[Operation]) -> bool:
    """Tell whether a call can write its buffers after others, in PyTorch's order."""
    return not any(_write_the_same(call, other) and other.number > call.number for other in others)


def refuse_statistics(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any], line: Line
) -> None:
    """Refuse one of `NORMALISATIONS` that writes its running statistics into tensors of the host.

    Args:
        function, name: What is called, and what it is called.
        args, kwargs: Its arguments.
        line: Where.

    Raises:
        CaptureError: It does.
    """
    if function in (F.batch_norm, F.instance_norm):
        given = inspect.signature(function).bind(*args, **kwargs)
        given.apply_defaults()
        mean, variance = given.arguments["running_mean"], given.arguments["running_var"]
        writes = given.arguments["training" if function is F.batch_norm else "use_input_stats"]
    else:
        mean, variance, writes = args[_STATISTICS]
    written = [each for each in (mean, variance) if isinstance(each, torch.Tensor) and parameter_of(each) is None]
    if writes and written:
        raise CaptureError(
            f"{name} at {line} is in training mode and writes running statistics of shape {tuple(written[0].shape)} "
            "into tensors of no prepared model, into which nothing comes back from the device. Make the layer part of "
            "the model that is prepared; or call eval() on it, or make it with track_running_stats=False."
        )
