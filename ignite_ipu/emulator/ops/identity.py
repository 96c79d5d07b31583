"""Marks on tensors for the compiler, which change no value or gradient; one makes a loss of a tensor.

Marks on inputs and outputs let their transfer overlap with compute.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List

import torch
from torch import fx

from ignite_ipu.emulator.enums import MatMulSerializationMode, OutputMode, OverlapMode
from ignite_ipu.emulator.errors import backend_error, python_error
from ignite_ipu.emulator.trace.active import Trace, active
from ignite_ipu.emulator.values.structures import map_tensors

_REDUCTIONS = ("sum", "mean", "none")


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor; the compiler does not optimise across this point.

    Raises:
        Error: It is no tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise python_error(f"nop must take a torch.tensor argument, got {tensor!r}.")
    return _alias("nop", tensor)


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Return the tensors, which the backward pass of a pipeline keeps instead of computing them again.

    Returns:
        The one tensor, a tuple of several, or, for one list or tuple, one of the same type.

    Raises:
        ValueError: Something is no tensor.
    """
    container = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else None
    given = tensors if container is None else container
    if not all(isinstance(tensor, torch.Tensor) for tensor in given):
        raise ValueError(f"recomputationCheckpoint: All inputs must be tensors, got {list(given)!r}.")
    found: List[torch.Tensor] = [_alias("recomputationCheckpoint", tensor) for tensor in given]
    if container is not None:
        return type(container)(found)
    return found[0] if len(found) == 1 else tuple(found)


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Return the tensor; the operator that made it may use this share of an IPU's memory for temporary values.

    The share is recorded on that operator, and in range, but has no meaning on a CPU.

    Raises:
        Error: It is no tensor, or the share is not between 0 and 1.
    """
    if not isinstance(tensor, torch.Tensor):
        raise python_error(f"set_available_memory may only set available memory for torch.tensor, got {tensor!r}.")
    trace = active()
    if trace is None:
        return tensor
    share: Any = available_memory_proportion
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise backend_error(f"set_available_memory: the proportion must be a number between 0 and 1, got {share!r}.")
    producer = trace.traced(tensor).node
    result = _alias("set_available_memory", tensor)
    producer.meta["available_memory"] = float(share)
    return result


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Return the inputs, whose transfer to the device overlaps with compute.

    The options need `ShardedExecution`, on one IPU too, I/O tiles, and the output mode `All` or `Sum`.

    Args:
        input_tensors: A tensor that forward was given, or a structure of them; other values stay as they are.
        mode: The loop with whose steps the transfer overlaps.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: A tensor is no input; or, found when forward has returned, it is used otherwise too, or the options do
            not allow overlap.
    """
    return _marked("set_overlap_for_input", input_tensors, mode, _check_input)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Return the outputs, whose transfer from the device overlaps with compute.

    The options need `ShardedExecution`, on one IPU too, I/O tiles, and the output mode `All` or `Sum`.

    Args:
        output_tensors: A tensor that forward returns, or a structure of them; other values stay as they are.
        mode: The loop with whose steps the transfer overlaps.

    Raises:
        AssertionError: `mode` is no `OverlapMode`.
        Error: A tensor is not returned, or twice, or the options do not allow overlap; found when forward has returned.
    """
    return _marked("set_overlap_for_output", output_tensors, mode, _check_output)


def serializedMatMul(
    lhs: torch.Tensor, rhs: torch.Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False
) -> torch.Tensor:
    """Return `torch.matmul(lhs, rhs)`; the device computes it in `factor` steps.

    The setting is recorded on the operator, and must be possible, but has no meaning on a CPU.

    Args:
        mode: The dimension that is cut.
        factor: Number of pieces; it must divide the dimension.
        keep_precision: Whether pieces of half values are added up in float.

    Raises:
        AssertionError: A type is wrong.
        Error: The dimension cannot be cut so.
    """
    if not isinstance(mode, MatMulSerializationMode):
        raise AssertionError(f"serializedMatMul: mode must be a poptorch.MatMulSerializationMode, got {mode!r}.")
    if not isinstance(factor, int):
        raise AssertionError(f"serializedMatMul: factor must be an int, got {factor!r}.")
    if not isinstance(keep_precision, bool):
        raise AssertionError(f"serializedMatMul: keep_precision must be a bool, got {keep_precision!r}.")
    trace = active()
    if trace is None:
        return torch.matmul(lhs, rhs)
    left, right = trace.traced(lhs).meta, trace.traced(rhs).meta
    if mode is not MatMulSerializationMode.Disabled:
        if left.dim() < 2 or right.dim() < 2:
            raise backend_error(
                f"serializedMatMul multiplies matrices, got tensors of {left.dim()} and {right.dim()} dimensions."
            )
        size = {
            MatMulSerializationMode.InputChannels: left.shape[-2],
            MatMulSerializationMode.ReducingDim: left.shape[-1],
            MatMulSerializationMode.OutputChannels: right.shape[-1],
        }[mode]
        if factor < 1 or size % factor:
            raise backend_error(
                f"serializedMatMul: the dimension of {mode.name} ({size}) must be a multiple of the serialisation "
                f"factor, which is {factor}."
            )
    product = torch.matmul(lhs, rhs)
    trace.traced(product).node.meta["serialisation"] = (mode, factor, keep_precision)
    return product


def identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    """Return the sum or mean of all elements, or a copy, marked as a loss of the traced model.

    Args:
        reduction: `"sum"`, `"mean"` or `"none"`. The gradient of a copy is that of its sum.

    Raises:
        AssertionError: The reduction is another one.
        Error: `x` is no tensor.
    """
    if reduction not in _REDUCTIONS:
        raise AssertionError(f"Unsupported reduction type {reduction!r}: identity_loss takes one of {_REDUCTIONS}.")
    if not isinstance(x, torch.Tensor):
        raise python_error(f"identity_loss must take a torch.tensor argument, got {x!r}.")
    trace = active()
    if trace is None:
        return _identity_loss(x, reduction)
    loss = trace.record(_identity_loss, x, reduction)
    trace.mark_loss(loss)
    return loss


def _identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "sum":
        return x.sum()
    return x.mean() if reduction == "mean" else x.clone()


_identity_loss.__name__ = "identity_loss"


def _alias(name: str, tensor: torch.Tensor) -> torch.Tensor:
    def kernel(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    kernel.__name__ = name
    trace = active()
    return tensor if trace is None else trace.record(kernel, tensor)


def _marked(name: str, tensors: Any, mode: OverlapMode, check: Callable[..., None]) -> Any:
    if not isinstance(mode, OverlapMode):
        raise AssertionError(f"{name} takes a poptorch.OverlapMode, got {mode!r}.")
    trace = active()
    return tensors if trace is None else map_tensors(tensors, functools.partial(_mark, trace, name, mode, check))


def _mark(trace: Trace, name: str, mode: OverlapMode, check: Callable[..., None], tensor: torch.Tensor) -> torch.Tensor:
    node = trace.traced(tensor).node
    if check is _check_input and node not in [traced.origin for traced in trace.placeholders.inputs.values()]:
        raise backend_error(
            f"set_overlap_for_input was applied to {node.name}, which is not a tensor input to the model. Apply it to "
            "an argument of forward, before any other operation."
        )
    marked = _alias(name, tensor)
    mark = trace.traced(marked).node
    mark.meta["overlap"] = mode
    # Errors of a tensor are reported before errors of the options.
    trace.checks.insert(0, functools.partial(check, node, mark))
    if mode is not OverlapMode.NoOverlap and _check_options not in trace.checks:
        trace.checks.append(_check_options)
    return marked


def _check_input(node: fx.Node, marked: fx.Node, *_: Any) -> None:
    if len(node.users) > 1:
        raise backend_error(
            f"set_overlap_for_input must be the only op applied to the input {node.name}. Use its result "
            "everywhere else."
        )


def _check_output(node: fx.Node, marked: fx.Node, returned: List[fx.Node], *_: Any) -> None:
    if marked not in returned:
        raise backend_error(
            f"set_overlap_for_output was applied to {node.name}, which is not a tensor output of the model. "
            "Return its result unchanged."
        )
    if [_unmarked(each) for each in returned].count(_unmarked(node)) > 1:
        raise backend_error(
            f"The output {node.name} is returned twice, marked or unmarked. Return the result of "
            "set_overlap_for_output once."
        )


def _unmarked(node: fx.Node) -> fx.Node:
    """Return the tensor that marks of overlap were put on."""
    while "overlap" in node.meta:
        (node,) = node.all_input_nodes
    return node


def _check_options(returned: List[fx.Node], options: Any, placement: Any) -> None:
    if placement.is_pipelined_execution:
        raise backend_error(
            "Overlapped IO is not supported with poptorch.PipelinedExecution, the default strategy, on one IPU "
            "either: call options.setExecutionStrategy(poptorch.ShardedExecution())."
        )
    if not options.TensorLocations.exists("numIOTiles"):
        raise backend_error(
            "No IO tiles allocated: overlapped IO needs some of each IPU's tiles. Call "
            "options.TensorLocations.numIOTiles(32) or more."
        )
    if returned and options.output_mode not in (OutputMode.All, OutputMode.Sum):
        raise backend_error(
            "Overlapped IO, of inputs too, needs the output mode All or Sum for all outputs, and it is "
            f"{OutputMode(options.output_mode).name}: call options.outputMode(poptorch.OutputMode.All)."
        )
