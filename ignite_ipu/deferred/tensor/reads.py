"""Reads of values that a training step computes: the one place that decides on the source of a value."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import torch

from ignite_ipu.capabilities.traced import SAMPLED
from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import NORM, Operation, Value, replayed, shown_input, weight_then
from ignite_ipu.deferred.graph.owners import Captured, CapturedLoop
from ignite_ipu.deferred.graph.step_graph import CALL, Loss, ancestors, sources_of
from ignite_ipu.deferred.tensor.frames import DISTRIBUTIONS, called_by
from ignite_ipu.errors import EarlyReadError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.reached import reached
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.tensors import lacks_gradients, usual_dispatch

_SAMPLING = word_set("multinomial bernoulli normal poisson binomial")


def read(value: Value, what: str) -> torch.Tensor:
    """Return a value, which is read as `what` says in words.

    It is known, the host computes it, or the update that it comes with runs now. The host computes it if the update is
    not complete by the known behaviour of the loop, and then the update is made as if it had not been read. This is so
    in the first step, while gradients accumulate, and before `backward()` unless the previous step shows the loss.

    Raises:
        EarlyReadError: Nothing can give it yet.
    """
    known = value.known
    if known:
        return value.get()
    if lacks_gradients():
        usual = usual_dispatch()
        if usual is None:
            raise EarlyReadError(
                f"torch.tensor([...]) at {current_line()} asks for a value of the training step, for which a program "
                f"has to run, and PyTorch {torch.__version__} allows none there. Write loss.item() for the element."
            )
        with usual:
            return read(value, what)
    if value.operation.of_weights:
        return _of_weights(value)
    operations, line = [each for each in sources_of(value) if not each.done], current_line()
    loops = list(dict.fromkeys(model.loop for model in models_of(operations, what, line)))
    calls = [each for each in operations if each.model is not None]
    found = None if calls else _evaluated(value, operations, line)
    if found is not None:
        return found
    updates = [loop.updates.read(value, operations) for loop in loops]
    known = value.known
    if known:
        # A loop that moved its updates to the host has computed the losses that went backward.
        return value.get()
    runs = [run for run in updates if run is not None]
    # Checks of distributions read in every step, and later the value could not be computed.
    complete = loops and len(runs) == len(loops) and all(loop.updates.accumulates is False for loop in loops)
    if calls and not complete and all(call.signature.evaluates for call in calls):
        found = _evaluated(value, operations, line)
        if found is not None:
            return found
    if not complete and not called_by(DISTRIBUTIONS):
        norms = [each for each in operations if each.signature is NORM]
        if all(each.model is not None and each.model.loop.updates.gradients.read_norms(line) for each in norms):
            left = [each for each in sources_of(value) if not each.done]
            found = value.get() if value.known else _computed_on_host(value, left, loops, line)
            if found is not None:
                return found
    refusing = next((loop for loop, run in zip(loops, updates) if run is None), None)
    if refusing is not None:
        raise _refusal(refusing, value, what)
    for run in runs:
        run()
    if not value.known and value.operation.problem is None:
        raise _refusal((loops or [model.loop for model in models_of(sources_of(value), what, line)])[0], value, what)
    return value.get()


def _of_weights(value: Value) -> torch.Tensor:
    """Compute a value of weights alone as PyTorch does, with gradients that reach no device."""

    def tensor_of(leaf: Input, operation: Operation) -> torch.Tensor:
        tensor = shown_input(leaf, operation)
        if leaf.weight is None and tensor is leaf.tensor:
            return tensor
        return torch.Tensor.detach(tensor).requires_grad_(leaf.shape.requires_grad)

    operations = sources_of(value)
    for operation in operations:
        for loop in {leaf.model.loop for leaf in operation.leaves if type(leaf) is Input and leaf.model is not None}:
            loop.reads.settle_before(operation, current_line())
    with torch.enable_grad():
        results = replayed(operations, tensor_of)
    value.take(results[value.operation][value.index])
    return value.get()


def _evaluated(value: Value, operations: Sequence[Operation], line: Line) -> Optional[torch.Tensor]:
    """Return a value that depends on calls in evaluation mode alone, which inference programs compute.

    Returns None if functions of it draw random numbers.
    """
    for operation in operations:
        if operation.model is None:
            continue
        for leaf in operation.value_leaves:
            read(leaf, "an argument")
        operation.model.loop.reads.check_weights()  # a write that is found has the call computed before
        if not operation.done:
            operation.model.evaluate(operation)
    left = [each for each in operations if not each.done]
    weights = [leaf.model.loop for each in left for leaf in each.leaves if type(leaf) is Input and leaf.model]
    found = _computed_on_host(value, left, list(dict.fromkeys(weights)), line) if left else value.get()
    if found is not None:
        value.take(found)
    return found


def _computed_on_host(
    value: Value, operations: Sequence[Operation], loops: Sequence[CapturedLoop], line: Line
) -> Optional[torch.Tensor]:
    """Return a value of a training step that has not run, and leave the step to the device.

    Layers keep their modes: random ones draw other numbers than the step will, and batch statistics are not kept.
    Returns None if the loop itself draws: a sample, such as an action, has to be the step's own.
    """
    alone = all(
        model.loop.reads.computes_alone(each) for each in operations for model in models_of([each], "a read", line)
    )
    if not (all(loop.reads.computes_on_host(line) for loop in loops) and alone):
        return None

    def called(call: Operation, leaves: List[Any]) -> Any:
        assert call.model is not None
        return call.model.called_with(call, leaves)

    for loop in loops:
        loop.reads.check_unwritten(operations)

    def tensor_of(leaf: Input, operation: Operation) -> torch.Tensor:
        return torch.Tensor.detach(leaf.tensor if leaf.model is None else weight_then(leaf, operation))

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        known = {each: results for loop in loops for each, results in loop.reads.known(operations).items()}
        results = replayed([each for each in operations if each not in known], tensor_of, called, known)
        drawn = not torch.equal(before, torch.get_rng_state())
    return None if drawn else results[value.operation][value.index]


def _refusal(loop: CapturedLoop, value: Value, what: str) -> EarlyReadError:
    """Return the error for a read for which no update can run."""
    line, operations = current_line(), sources_of(value)
    stale = next((call for call in operations if call.model is not None and loop.updates.weights.are_stale(call)), None)
    if stale is not None:
        return EarlyReadError(
            f"{what} at {line} asks for a value that the call of {loop.name} at {stale.line} gives, "
            "and the weights that it used have been updated since. The device computes the calls of an update, and "
            "that call is in none. Read the value before optimizer.step(), or call the model in eval mode "
            "under torch.no_grad()."
        )
    if loop.updates.take_turns:
        return EarlyReadError(
            f"{what} at {line} asks for a value of an update by one of several optimizers before its "
            "step(), and the host cannot compute it beside that: random numbers are drawn for it, or for calls of the "
            "model that have yet to write buffers which it reads. Read it after that step()."
        )
    reason = incomplete(loop) if has_gone_backward(operations, loop) else None
    if reason is not None:
        return EarlyReadError(
            f"{what} at {line} asks for a value that comes with the weight update, and {reason}. Keep "
            "loss.detach() and read it after the update."
        )
    functions = [each for each in operations if each.model is None]
    sampled = next((each for each in functions if each.name in _SAMPLING), None)
    if all(each.signature.evaluates for each in operations if each.model is not None):
        sampled = next((each for each in functions if each.signature.draws), sampled)
    elif value.shape.requires_grad:
        sampled = None
    if sampled is not None:
        drawn = f"by {sampled.name} at {sampled.line}"
        return EarlyReadError(f"{line}: {SAMPLED.refusal(what, drawn)}")
    remedy = (
        "It is a check of torch.distributions: leave it out with validate_args=False."
        if called_by(DISTRIBUTIONS)
        else "Move the line after backward (or optimizer.step()); to keep a sum, add loss.detach() and read "
        "the sum later. For a forward pass without training, call model.eval() or use torch.no_grad()."
    )
    return EarlyReadError(
        f"{what} at {line} asks for a value of the training step before the step has run: its loss has "
        f"not gone backward. {remedy}"
    )


def incomplete(loop: CapturedLoop) -> Optional[str]:
    """Return the reason why the pending update cannot be made yet, or None.

    If an engine's step function returned after the last loss, more will follow; as they may if the loop has kept the
    graph of one, unless the update before shows that they do not.
    """
    reason: Optional[str] = loop.setup.postponed()
    losses = loop.updates.pending
    if reason is not None or not losses:
        return reason
    if losses[-1].call in (None, CALL.get()):
        reason = loop.updates.awaits_more()
        return reason
    return (
        f"the step function that called backward() at {losses[-1].line} has returned without optimizer.step(), so that "
        "gradients accumulate (handlers read in iterations that make an update, as by "
        "Events.ITERATION_COMPLETED(every=...))"
    )


def awaits_backward(value: Value) -> bool:
    """Return whether a value comes with a step whose loss has not gone backward."""
    operations = [operation for operation in sources_of(value) if not operation.done]
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


def is_of_evaluations(value: Value) -> bool:
    """Return whether a value can be had at any time, as it depends on no call but those in evaluation mode."""
    pending = [each for each in sources_of(value) if not each.done and each.model is not None]
    return value.known or all(each.signature.evaluates and each.problem is None for each in pending)


def expected_loss(value: Value, line: Line) -> Optional[Loss]:
    """Return the loss that goes backward next, by the recorded operations.

    It is the last scalar with gradients that is computed by the same calls of the model, and the only such one.
    """

    def following(current: Value) -> List[Value]:
        return [result for each in current.readers() for result in each.values if result.shape.requires_grad]

    given = [result for call in ancestors(value) if call.model is not None for result in call.values]
    last = [
        each
        for each in reached(given, following)
        if max(each.shape.size, default=1) == 1
        and each.shape.requires_grad
        and each.handle() is not None
        and not following(each)
    ]
    last = [each for each in last if each is not value] or last
    return Loss(last[0], ancestors(last[0]), line) if len(last) == 1 else None


def models_of(operations: Sequence[Operation], what: str, line: Line) -> List[Captured]:
    """Return the models that operations call or use weights of; `what` describes the request at a line."""
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
