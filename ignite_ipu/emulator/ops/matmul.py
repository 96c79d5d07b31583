"""A matrix product cut into pieces that the device computes one after the other."""

from __future__ import annotations

from typing import Any

import torch

from ignite_ipu.emulator.enums import MatMulSerializationMode
from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.trace.active import active


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
    _check(left, right, mode, factor)
    product = torch.matmul(lhs, rhs)
    trace.traced(product).node.meta["serialisation"] = (mode, factor, keep_precision)
    return product


def _check(left: Any, right: Any, mode: MatMulSerializationMode, factor: int) -> None:
    if mode is MatMulSerializationMode.Disabled:
        return
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
            f"serializedMatMul: the dimension of {mode.name} ({size}) must be a multiple of the serialisation factor, "
            f"which is {factor}."
        )
