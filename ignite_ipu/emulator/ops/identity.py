"""Operators that return what they are given: they tell the compiler something, and change no value or gradient."""

from __future__ import annotations

from typing import Any, List

import torch

from ignite_ipu.emulator.errors import backend_error, python_error
from ignite_ipu.emulator.trace.active import active


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
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        container = tensors[0]
        return type(container)(_checkpoints(container))
    found = _checkpoints(tensors)
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


def _checkpoints(tensors: Any) -> List[torch.Tensor]:
    if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        raise ValueError(f"recomputationCheckpoint: All inputs must be tensors, got {list(tensors)!r}.")
    return [_alias("recomputationCheckpoint", tensor) for tensor in tensors]


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


KERNELS = {
    name: _kernel(name)
    for name in (
        *("nop", "recomputationCheckpoint", "set_available_memory"),
        *("set_overlap_for_input", "set_overlap_for_output"),
    )
}
