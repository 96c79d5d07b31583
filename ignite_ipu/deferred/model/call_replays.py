"""Calls of captured models that are replayed on the host, for the buffers that they write."""

from __future__ import annotations

from typing import Any, Container, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.graph.operations import NORM, Contents, Operation, replayed, shown_input
from ignite_ipu.deferred.graph.state import written_buffers
from ignite_ipu.deferred.graph.structure import leaves_in, unflatten
from ignite_ipu.deferred.model.edits import WeightEdits
from ignite_ipu.errors import logger
from ignite_ipu.program.forward.assigned_buffers import assignments_written
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.left_behind import called_beside
from ignite_ipu.program.forward.model_libraries import without_generation_cache
from ignite_ipu.program.forward.randomness import draws_put_back
from ignite_ipu.program.reached import reached
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import all_modules
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class Replay(NamedTuple):
    """A replayed call: the contents of the buffers that it writes, by name; and its results on the host."""

    contents: Mapping[str, Contents]
    results: List[torch.Tensor]


class CallReplays:
    """Replays calls of captured models that are trained together."""

    def __init__(self, edits: WeightEdits, weights: Weights) -> None:
        self._edits, self._weights = edits, weights
        self._has_told = False

    def problem_of(self, call: Operation, passed: Container[int], older: bool) -> Optional[str]:
        """Return why a call cannot be replayed now, None if it can.

        Args:
            passed: Numbers of calls that weights have changed after.
            older: Whether the host has the weights from before the last writes.
        """
        then = call.signature.modes
        if call.number in passed:
            return "weights have changed since"
        lost = None if then is None else then.of.lost(then)
        if lost is not None:
            return f"{lost} since"
        if not (older or self._edits.older_than(call)):
            return "weights or buffers were written since"
        for each in chain_of(call):
            if each.signature is NORM or (each.done and each is not call):
                return f"it is computed from a value of an update, of {each.line}"
            if each.signature.draws and (each is not call or is_awaited(call)):
                return f"{each.name} at {each.line} draws random numbers, which the device draws in the update"
        return None

    def replay(self, chain: Sequence[Operation], known: Dict[Operation, List[torch.Tensor]]) -> Replay:
        """Make the last call of a chain on the host, from the results of calls in it that are known there."""
        call = chain[-1]
        if not self._has_told and is_awaited(call):
            self._has_told = True
            logger.warning(
                "Buffers are used at %s that the call at %s writes, and its update has not run, so the host replays "
                "the call, here and in the steps to come: each time a forward pass on the CPU, with a copy of the "
                "weights. Read buffers after optimizer.step() to save both.",
                current_line(),
                call.line,
            )
        self._weights.to_host()
        buffers = written_buffers(call)
        before = {name: plain(buffer).clone() for name, buffer in buffers.items()}
        with draws_put_back():
            made = [each for each in chain if each not in known]
            results = replayed(made, shown_input, self._called, known, writes=True)[call]
        return Replay({name: Contents(before[name], plain(each).clone()) for name, each in buffers.items()}, results)

    def _called(self, call: Operation, leaves: List[Any]) -> Any:
        """Return the result of a model's call on the host, which writes its buffers there."""
        assert call.model is not None and call.signature.modes is not None
        loop: Any = call.model.loop
        model, then = call.model.model, call.signature.modes
        args, kwargs = unflatten(call.signature.structure, leaves)
        loop.session.weights.to_host()
        with then.put_back():
            with EAGER, without_generation_cache(all_modules(model)), DisableTorchFunctionSubclass():
                # As at the call, by which its code may decide.
                with torch.set_grad_enabled(call.signature.grad), assignments_written(model):
                    results = called_beside(call.signature.left, lambda: model(*args, **kwargs))
        for buffer in written_buffers(call).values():
            torch.Tensor.detach_(plain(buffer))
        return list(map(torch.Tensor.detach, leaves_in(results)))


def chain_of(call: Operation, but: Container[int] = ()) -> Sequence[Operation]:
    """Return a call and the operations that its arguments have yet to be computed by.

    Those by which arguments of others are, with the numbers in `but`, are left out.
    """
    return list(reached([call], lambda each: () if each.number in but else _unknown_arguments(each)))


def _unknown_arguments(operation: Operation) -> List[Operation]:
    """Return the operations that arguments of one have yet to be computed by."""
    return [leaf.operation for leaf in operation.value_leaves if not leaf.known]


def is_awaited(call: Operation) -> bool:
    """Return whether any result of a call is still referenced, so that it may go backward."""
    return call.problem is None and bool(call.values)


def before_replay(call: Operation, replay: Optional[Replay]) -> List[Tuple[torch.Tensor, Optional[torch.Tensor]]]:
    """Return the buffers that a call writes, each with its value from before; None for a call without a replay."""
    buffers = written_buffers(call).items()
    return [(tensor, None if replay is None else replay.contents[name].before) for name, tensor in buffers]


def nothing(operation: Operation) -> bool:
    """Return that an update which gives gradients alone changes no weights that an operation computes with."""
    return False
