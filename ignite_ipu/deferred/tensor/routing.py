"""From a deferred value to the captured models that it was computed from: they go backward, or run, for it."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import torch

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import NORM, Operation, Value, replayed, shown_input
from ignite_ipu.deferred.graph.owners import Captured, CapturedLoop, parameter_of
from ignite_ipu.deferred.graph.step_graph import Loss, ancestors
from ignite_ipu.deferred.tensor.frames import DISTRIBUTIONS, called_by
from ignite_ipu.errors import CaptureError, EarlyReadError
from ignite_ipu.program.user_code import Line, current_line


def mark_loss(value: Value, retained: bool = False) -> None:
    """Let a value go backward; `retained` says that gradients may flow through what it is computed from once more."""
    line = current_line(above=2)
    if value.went_backward is not None:
        value.went_backward()
        value.went_backward = None
        return
    if value.known and not value.live:
        raise CaptureError(
            f"backward() at {line}: the step of this loss has run already, and with it its backward pass."
        )
    operations = ancestors(value)
    for operation in operations:
        if operation.signature is NORM:
            raise CaptureError(
                f"The loss at {line} is computed with the norm of gradients from {operation.line}, which comes with "
                "the update that it is a loss of. Use the norm after optimizer.step()."
            )
    _find_weights(operations, line)
    models = _models_of(operations, "backward()", line)
    if not models:
        raise CaptureError(
            f"The loss at {line} is computed by no call of a captured model and from no weight of one, so its "
            "gradients would be the host's. A model is captured when it is given to ipu_prepare together with its "
            "optimizer."
        )
    loops = list(dict.fromkeys(model.loop for model in models))
    if value.shape.size and max(value.shape.size) != 1:
        raise CaptureError(
            f"backward() at {line} was called on a tensor of shape {value.shape.size}; a loss is a scalar. "
            "Reduce it with mean() or sum()."
        )
    if not value.shape.requires_grad:
        raise CaptureError(
            f"backward() at {line} was called on a value that does not depend on trainable weights (it was "
            "detached, or computed without gradients), so nothing would be trained."
        )
    first, *others = loops
    loop = first.joined(models, line)[0] if others else first
    loop.backward(Loss(value, operations, line, retained))


def awaits_backward(value: Value) -> bool:
    """Tell whether a value comes with a step whose loss has not gone backward."""
    operations = [operation for operation in ancestors(value) if not operation.done]
    if any(operation.problem is not None for operation in operations):
        return False
    loops = {operation.model.loop for operation in operations if operation.model is not None}
    if not loops and torch.is_grad_enabled():
        return value.shape.requires_grad  # it comes from weights alone, as a prompt that a frozen model is given
    return not all(has_gone_backward(operations, loop) for loop in loops)


def has_gone_backward(operations: Sequence[Operation], loop: CapturedLoop) -> bool:
    """Return whether the calls of a loop's models among operations are of losses that went backward."""
    calls = [each for each in operations if each.model is not None and each.signature is not NORM and not each.done]
    own = {call for call in calls if call.model is not None and call.model.loop is loop}
    return own <= {operation for loss in loop.updates.pending for operation in loss.operations}


def run_for_read(value: Value, what: str) -> Optional[torch.Tensor]:
    """Run the update that a value comes with, which somebody reads; or return it, where the host computes it instead.

    The host does where the update is not complete, by what is known of the loop: in the first step, while gradients
    accumulate, and before `backward()` unless the step before tells what goes backward.
    """
    if value.operation.of_weights:
        return on_host(value)
    operations, line = [each for each in ancestors(value) if not each.done], current_line()
    loops = list(dict.fromkeys(model.loop for model in _models_of(operations, what, line)))
    updates = [loop.updates.read(value, operations) for loop in loops]
    # Checks of distributions ask in every step, and later nobody could answer.
    complete = loops and None not in updates and all(loop.updates.accumulates is False for loop in loops)
    if not complete and not called_by(DISTRIBUTIONS):
        norms = [each for each in operations if each.signature is NORM]
        if all(each.model is not None and each.model.loop.updates.read_norms(line) for each in norms):
            left = [each for each in ancestors(value) if not each.done]
            found = value.get() if norms and value.known else _computed_on_host(value, left, loops, line)
            if found is not None:
                return found
    for loop, run in zip(loops, updates):
        if run is None:
            loop.refuse_read(value, what)
        else:
            run()
    return None


def on_host(value: Value) -> torch.Tensor:
    """Compute what comes from weights alone as PyTorch does, with gradients that reach no device."""

    def tensor_of(leaf: Input, operation: Operation) -> torch.Tensor:
        tensor = shown_input(leaf, operation)
        return tensor if leaf.weight is None else torch.Tensor.detach(tensor).requires_grad_()

    with torch.enable_grad():
        results = replayed(ancestors(value), tensor_of)
    value.take(results[value.operation][value.index])
    return value.get()


def _find_weights(operations: Sequence[Operation], line: Line) -> None:
    """Find out whose the weights are that a loss at a line is computed from; those that are no module's get one."""
    used = [
        (operation, leaf, leaf.weight)
        for operation in operations
        for leaf in operation.leaves
        if type(leaf) is Input and leaf.weight is not None
    ]
    loose = {id(weight): weight for _, _, weight in used if parameter_of(weight) is None}
    if loose:
        models = _models_of(operations, "backward()", line)
        if not models:
            return
        owner = models[0].beside(list(loose.values()))  # which lives by this name until they belong to it
    for operation, leaf, weight in used:
        found = parameter_of(weight)
        assert found is not None
        owner, name = found
        leaf.belong(name, owner, operation.line)


def _computed_on_host(
    value: Value, operations: Sequence[Operation], loops: Sequence[CapturedLoop], line: Line
) -> Optional[torch.Tensor]:
    """Return a value of a training step that has not run, and leave the step to the device.

    Layers are in the modes they are in: random ones draw others than the step will, and statistics of batches are not
    kept. None where the loop itself draws: what is sampled, as an action, has to be what the step samples.
    """
    alone = all(each.model is None or each.model.loop.computes_alone(each) for each in operations)
    if not (all(loop.computes_on_host(line) for loop in loops) and alone):
        return None

    def called(call: Operation, leaves: List[Any]) -> Any:
        assert call.model is not None
        return call.model.called_with(call, leaves)

    for loop in loops:
        loop.check_unwritten(operations)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        results = replayed(operations, lambda leaf, operation: torch.Tensor.detach(leaf.tensor), called)
        drawn = not torch.equal(before, torch.get_rng_state())
    return None if drawn else results[value.operation][value.index]


def _models_of(operations: Sequence[Operation], what: str, line: Line) -> List[Captured]:
    """Return the models that operations call or use weights of; `what` says how they are asked for at a line."""
    found: Dict[Captured, None] = {}
    for operation in operations:
        if operation.problem is not None:
            raise EarlyReadError(f"{what} at {line} asks for a value that will never exist: {operation.problem}.")
        if operation.model is not None:
            found[operation.model] = None
        for leaf in operation.leaves:
            if type(leaf) is Input and leaf.model is not None:
                found[leaf.model] = None
    return list(found)
