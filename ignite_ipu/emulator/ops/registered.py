"""Operators that PopTorch registers as `torch.ops.poptorch` and that programs call by that name."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch

from ignite_ipu.emulator.ops.identity import nop, recomputationCheckpoint, set_available_memory
from ignite_ipu.emulator.trace.active import active

_TYPES = {"FLOAT": torch.float32, "FLOAT16": torch.float16}


def push_name_scope(name: str) -> None:
    """Put the operators that follow in a trace below a name; nothing outside of one."""
    trace = active()
    if trace is not None:
        trace.scope.append(name)


def pop_name_scope() -> None:
    """Leave the innermost name scope."""
    trace = active()
    if trace is not None and trace.scope:
        trace.scope.pop()


def internal_cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return a tensor as `FLOAT` (float32) or `FLOAT16`.

    Outside of a trace `FLOAT16` gives float32 and `FLOAT` the tensor itself, as in PopTorch.

    Raises:
        ValueError: `dtype` is another text.
    """
    if dtype not in _TYPES:
        raise ValueError(f"internal_cast takes 'FLOAT' or 'FLOAT16', got {dtype!r}.")
    if active() is not None:
        return tensor.to(_TYPES[dtype])
    return tensor.float() if dtype == "FLOAT16" else tensor


def internal_cast_to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `internal_cast` of a tensor to one of PyTorch's types.

    Raises:
        ValueError: `dtype` is neither float32 nor float16.
    """
    names = {kind: name for name, kind in _TYPES.items()}
    if dtype not in names:
        raise ValueError(f"Invalid poptorch.cast target type. Expecting torch.float or torch.half, got {dtype}.")
    return internal_cast(tensor, names[dtype])


def set_attribute(attribute: str, key: str, value: str) -> None:
    """Do nothing: attributes are for the IPU's compiler."""


def clear_attribute(attribute: str, key: str) -> None:
    """Do nothing: attributes are for the IPU's compiler."""


OPERATORS: Dict[str, Callable[..., Any]] = {
    "clear_attribute": clear_attribute,
    "internal_cast": internal_cast,
    "nop": nop,
    "pop_name_scope": pop_name_scope,
    "push_name_scope": push_name_scope,
    "recomputation_checkpoint": recomputationCheckpoint,
    "set_attribute": set_attribute,
    "set_available_memory": set_available_memory,
}
# PyTorch keeps a namespace of operators for each library.
vars(torch.ops.poptorch).update(OPERATORS)
