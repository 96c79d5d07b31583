"""Marks on tensors, which tell the compiler something and change no value or gradient; one makes a loss of a tensor."""

from __future__ import annotations

from typing import Any, List

import torch

from ignite_ipu.emulator.enums import MatMulSerializationMode
from ignite_ipu.emulator.errors import backend_error, python_error
from ignite_ipu.emulator.trace.active import active

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
    return loss  # type: ignore[no-any-return]


def _identity_loss(x: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "sum":
        return x.sum()
    return x.mean() if reduction == "mean" else x.clone()


_identity_loss.__name__ = "identity_loss"


def _alias(name: str, tensor: torch.Tensor) -> torch.Tensor:
    trace = active()
    if trace is None:
        return tensor
    aliased: torch.Tensor = trace.record(KERNELS[name], tensor)
    return aliased


def _kernel(name: str) -> Any:
    def kernel(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    kernel.__name__ = name
    return kernel


_NAMES = "nop recomputationCheckpoint set_available_memory set_overlap_for_input set_overlap_for_output"
KERNELS = {name: _kernel(name) for name in _NAMES.split()}
