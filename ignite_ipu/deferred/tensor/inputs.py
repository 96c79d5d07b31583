"""Tensors of the host that recorded operations read: weights, and others, of which no gradients exist."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F

from ignite_ipu.capabilities.gradients import GRADIENTS_ON_THE_HOST
from ignite_ipu.deferred.graph.leaves import Input, Shape
from ignite_ipu.deferred.graph.operations import DIFFERENTIATED, Operation
from ignite_ipu.deferred.graph.owners import parameter_of, take_replaced
from ignite_ipu.deferred.graph.signatures import arguments_of
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.structure import refuse_sparse
from ignite_ipu.deferred.tensor.device_gradient import refuse_weights_of_the_host, withhold_gradient
from ignite_ipu.errors import CaptureError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import Line
from ignite_ipu.session.weights.access import is_watched
from ignite_ipu.torch_names.tensors import gradient_hooks_of

# Functions that write running statistics, those of TorchScript too.
NORMALISATIONS = word_set(
    "batch_norm instance_norm native_batch_norm native_batch_norm.default _native_batch_norm_legit "
    "_native_batch_norm_legit.default"
)
# Where in the arguments of those in C++ the statistics are, and whether they are written.
_STATISTICS = slice(3, 6)


def is_weight(tensor: Any) -> bool:
    """Return whether a tensor is a trained weight, of a captured model or held by an optimizer of one."""
    own = is_watched(type(tensor)) or parameter_of(tensor) is not None
    return own and requires_grad(tensor)


def input_of(tensor: torch.Tensor, line: Line) -> Input:
    """Return the reference of a recorded operation to a tensor of the host, which may be a weight."""
    if is_watched(type(tensor)):
        take_replaced(tensor)
    found = parameter_of(tensor)
    if found is not None:
        model, name = found
        model.loop.reads.check_weights()
        return Input(tensor, Shape.of(tensor, requires_grad(tensor)), name, model)
    if is_weight(tensor):
        weight = Input(tensor, Shape.of(tensor, True), "")
        weight.set_aside(tensor)
        return weight
    differentiated = requires_grad(tensor) and torch.is_grad_enabled()
    if differentiated and not tensor.is_leaf:
        refuse_weights_of_the_host(tensor, line)
    if tensor.device.type != "cpu":
        raise CaptureError(
            f"A tensor on {tensor.device} takes part in the step at {line}; PopTorch copies from the host's "
            "memory. Leave it on the CPU."
        )
    refuse_sparse(tensor, line)
    found_input = Input(tensor, Shape.of(tensor, differentiated))
    found_input.differentiated = differentiated
    return found_input


def gradients_return(loss: Loss) -> bool:
    """Return whether a loss has gradients for tensors of the host, which are no weights.

    A leaf that no code holds any more becomes a constant: its gradient is read by nothing. This is the zero with
    `requires_grad=True` to which a loop adds penalties.
    """
    by_tensor: Dict[int, List[Input]] = {}
    for _, leaf in _differentiated_in(loss):
        by_tensor.setdefault(id(leaf.tensor), []).append(leaf)
    return not all([_made_constant(leaves) for leaves in by_tensor.values()])


def _made_constant(inputs: Sequence[Input]) -> bool:
    """Make constants of the inputs of one tensor if nothing else holds it; return whether nothing does."""
    tensor: Optional[torch.Tensor] = inputs[0].tensor
    if type(tensor) is not torch.Tensor or not tensor.is_leaf or gradient_hooks_of(tensor):
        return False
    memory, held = tensor.detach(), weakref.ref(tensor)
    for each in inputs:
        each.tensor = memory
    tensor = None
    tensor = held()
    for each in inputs:
        each.differentiated = tensor is not None
        each.tensor = memory if tensor is None else tensor
    return tensor is None


def refuse_differentiated(loss: Loss) -> None:
    """Refuse a loss of tensors that require gradients where the device makes the updates.

    A leaf without hooks takes part as a constant, and uses of its gradient are refused.
    """
    for operation, leaf in _differentiated_in(loss):
        if leaf.tensor.is_leaf and not gradient_hooks_of(leaf.tensor):
            withhold_gradient(leaf.tensor)
            continue
        raise CaptureError(
            f"A tensor of shape {tuple(leaf.tensor.shape)} at {operation.line} requires gradients, but it is no "
            "part of the captured model, so a fused update does not compute them. Prepare the model that computed "
            f"it, or call detach() on it. {GRADIENTS_ON_THE_HOST}"
        )


def _differentiated_in(loss: Loss) -> Iterator[Tuple[Operation, Input]]:
    for operation in [each for each in loss.operations if each.number in DIFFERENTIATED]:
        for leaf in operation.leaves:
            if type(leaf) is Input and leaf.differentiated:
                yield operation, leaf


def refuse_statistics(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any], line: Line
) -> bool:
    """Return whether one of `NORMALISATIONS` writes running statistics of a captured model; refuse those of none."""
    if function in (F.batch_norm, F.instance_norm):
        given = arguments_of(function, args, kwargs)
        mean, variance = given["running_mean"], given["running_var"]
        writes = given["training" if function is F.batch_norm else "use_input_stats"]
    else:
        mean, variance, writes = args[_STATISTICS]
    written = [each for each in (mean, variance) if isinstance(each, torch.Tensor) and parameter_of(each) is None]
    if writes and written:
        raise CaptureError(
            f"{name} at {line} is in training mode and writes running statistics of shape {tuple(written[0].shape)} "
            "into tensors of no prepared model, into which nothing comes back from the device. Make the layer part of "
            "the model that is prepared; or call eval() on it, or make it with track_running_stats=False."
        )
    return bool(writes) and isinstance(mean, torch.Tensor)
