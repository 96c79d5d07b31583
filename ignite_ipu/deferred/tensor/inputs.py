"""Tensors of the host that recorded operations read: weights, and others, of which no gradients exist."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from ignite_ipu.deferred.graph.leaves import Input, Shape
from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.graph.signatures import arguments_of
from ignite_ipu.deferred.graph.structure import refuse_sparse
from ignite_ipu.deferred.tensor.device_gradient import ON_THE_HOST, refuse_weights_of_the_host, withhold_gradient
from ignite_ipu.errors import CaptureError
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import Line
from ignite_ipu.session.weights.access import is_watched

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
    found = parameter_of(tensor)
    if found is not None:
        model, name = found
        model.loop.check_weights()
        return Input(tensor, Shape.of(tensor, requires_grad(tensor)), name, model)
    if is_weight(tensor):
        weight = Input(tensor, Shape.of(tensor, True), "")
        weight.set_aside()
        return weight
    if requires_grad(tensor) and tensor.is_leaf and torch.is_grad_enabled():
        withhold_gradient(tensor)
    elif requires_grad(tensor):
        refuse_weights_of_the_host(tensor, line)
        raise CaptureError(
            f"A tensor of shape {tuple(tensor.shape)} at {line} requires gradients, but it is no part of the "
            "captured model, so the device could not train through it. Prepare the model that computed it, or call "
            "detach() on it. "
            f"{ON_THE_HOST}"
        )
    if tensor.device.type != "cpu":
        raise CaptureError(
            f"A tensor on {tensor.device} takes part in the step at {line}; PopTorch copies from the host's "
            "memory. Leave it on the CPU."
        )
    refuse_sparse(tensor, line)
    return Input(tensor, Shape.of(tensor, False))


def refuse_statistics(
    function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any], line: Line
) -> None:
    """Refuse one of `NORMALISATIONS` that writes its running statistics into tensors of the host."""
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
