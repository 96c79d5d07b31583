"""Losses: deferred values that go backward, the loops that they are computed in, and their places in a graph."""

from __future__ import annotations

from typing import Dict, List, NoReturn, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import NORM, Operation, Value
from ignite_ipu.deferred.graph.owners import CapturedLoop, capture_held, parameter_of
from ignite_ipu.deferred.graph.step_graph import Loss, ancestors, gradient_path
from ignite_ipu.deferred.tensor.reads import models_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import Line, current_line


class RecordedNode:
    """Stands for the node of autograd's graph that a deferred value with gradients would have, as `tensor.grad_fn`.

    Code checks that it exists, to decide whether a loss goes backward. The graph itself is the device's.
    """

    def __init__(self, value: Value) -> None:
        self._line = value.operation.line

    def name(self) -> str:
        return "RecordedBackward"

    def __repr__(self) -> str:
        return f"<RecordedBackward of {self._line}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CaptureError(
            f"grad_fn.{name} at {current_line()}: the graph of a value that is computed at {self._line} is the "
            "device's, and the host has none. To find weights without a gradient, look at parameter.grad after "
            "backward()."
        )


def mark_loss(value: Value, retained: bool = False) -> None:
    """Let a value go backward; with `retained`, gradients may flow through its sources once more."""
    line = current_line(above=2)
    if value.went_backward is not None:
        value.went_backward(retained)
        value.went_backward = None
        return
    chain = value.operation.signature.chain()
    batch = None if chain is None else chain.match(value)
    if batch is None:
        loop, loss = _loss_of(value, retained, line)
    else:
        loop, loss = chain.models[0].loop, Loss(value, batch.operations, line, retained, batch=batch)
    if loop.steady is None or not loop.steady.backward(loss):
        loop.backward(loss)


def gradients_of(
    value: Value, parameters: Sequence[torch.Tensor], retained: bool, refusal: str
) -> List[Optional[torch.Tensor]]:
    """Return the gradients of a value with respect to parameters, each None if the value does not depend on it.

    The loop makes its updates on the host from then on.

    Raises:
        CaptureError: It may not, with `refusal` as the message, or the gradients are not those of captured weights.
    """
    line = current_line(above=3)
    if not all(map(_is_leaf_of_loop, parameters)):
        raise CaptureError(refusal)
    ran_early = value.went_backward is not None  # for a read of the value; the change to the host takes it back
    owners = [found[0] for found in map(parameter_of, parameters) if found is not None]
    for model in dict.fromkeys([*owners, *models_of(ancestors(value), "grad()", line)]):
        model.loop.updates.leave_device(f"Gradients are computed at {line} without backward().", CaptureError(refusal))
    loop, loss = _loss_of(value, retained, line, ran_early)
    found: List[Optional[torch.Tensor]] = loop.updates.gradients.of_loss(loss, parameters)
    return found


def _is_leaf_of_loop(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a captured weight, or one of the host that requires gradients."""
    return parameter_of(tensor) is not None or (type(tensor) in (torch.Tensor, nn.Parameter) and tensor.requires_grad)


def _loss_of(value: Value, retained: bool, line: Line, ran_early: bool = False) -> Tuple[CapturedLoop, Loss]:
    """Return a value as a loss, with the loop that computes it."""
    if not ran_early and value.known and not value.live:
        raise CaptureError(
            f"backward() at {line}: the step of this loss has run already, and with it its backward pass."
        )
    operations = ancestors(value)
    with_weights = False
    for operation in operations:
        for leaf in operation.leaves:
            with_weights = with_weights or (type(leaf) is Input and leaf.weight is not None)
        operation.signature.went_backward = True
        if operation.signature is NORM:
            raise CaptureError(
                f"The loss at {line} is computed with the norm of gradients from {operation.line}, which comes with "
                "the update that it is a loss of. Use the norm after optimizer.step()."
            )
    if with_weights:
        _find_weights(operations, line)
    models = models_of(operations, "backward()", line)
    if not models:
        raise CaptureError(
            f"The loss at {line} is computed by no call of a captured model and from no weight of one, so its "
            "gradients would be the host's. A model is captured when it is given to ipu_prepare together with its "
            "optimizer. Give the optimizer of a parameter of no module to the same call."
        )
    loops = [models[0].loop] if len(models) == 1 else list(dict.fromkeys([model.loop for model in models]))
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
    loss = Loss(value, operations, line, retained)
    loop = first.setup.join(models, line)[0] if others else first
    _refuse_spent(loss)
    return loop, loss


def _refuse_spent(loss: Loss) -> None:
    """Refuse a loss whose gradients would flow through operations of an update that has run."""
    spent: Dict[Operation, Line] = {}
    for each in loss.operations:
        for leaf in each.leaves:
            if type(leaf) is Input and leaf.spent is not None:
                spent[each] = leaf.spent
    if not spent:
        return
    for operation in gradient_path(loss.value):
        if operation in spent:
            raise CaptureError(
                f"The loss at {loss.line} is computed from a value of {spent[operation]}, of which an update has run. "
                "PyTorch would go backward through that a second time. This is an error without retain_graph=True. "
                "With it, gradients are by the previous weights, in a graph that grows from step to step. On a device "
                "each update is a program of its own. Compute with value.detach() if only the number is needed, or "
                "call optimizer.step() once, after all operations of the loss."
            )


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
        weights = list(loose.values())
        models = models_of(operations, "backward()", line)
        if models:
            owner = models[0].beside(weights)  # which lives by this name until they belong to it
        elif not capture_held(weights):
            return
    for operation, leaf, weight in used:
        found = parameter_of(weight)
        assert found is not None
        owner, name = found
        leaf.belong(name, owner, operation)
