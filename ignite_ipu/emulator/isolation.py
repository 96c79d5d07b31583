"""PyTorch's contexts around a device call: what the call does is what it does without them.

On an IPU a compiled program knows nothing of `torch.autocast`, a default device or hooks of autograd's. The emulator
computes with PyTorch's own operators, which would follow them.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, List, TypeVar

import torch

from ignite_ipu.emulator import inference_mode, saved_tensor_hooks

__all__ = ["unaffected"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unaffected(function: _Function) -> _Function:
    """Let a function run outside of inference mode, CPU autocast, saved tensor hooks, function modes and jit traces.

    A default device is a function mode.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _is_affected():
            return function(*args, **kwargs)
        with _left():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def _is_affected() -> bool:
    return bool(
        torch.is_inference_mode_enabled()
        or _autocasts()
        or torch._C._len_torch_function_stack()
        or saved_tensor_hooks.active()
        or torch._C._get_tracing_state() is not None
    )


@contextlib.contextmanager
def _left() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(_function_modes_left())
        stack.enter_context(_traces_left())
        if torch.is_inference_mode_enabled():
            stack.enter_context(inference_mode.left())
        if _autocasts():
            stack.enter_context(torch.autocast("cpu", enabled=False))
        if saved_tensor_hooks.active():
            stack.enter_context(saved_tensor_hooks.left())
        yield


@contextlib.contextmanager
def _function_modes_left() -> Iterator[None]:
    modes: List[Any] = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)


@contextlib.contextmanager
def _traces_left() -> Iterator[None]:
    """Leave the trace of `torch.jit.trace`, which would record how weights are copied, or crash on their memory."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]


def _autocasts_before_devices_were_named() -> bool:
    return torch.is_autocast_cpu_enabled()


def _autocasts_on_cpu() -> bool:
    return torch.is_autocast_enabled("cpu")


try:
    torch.is_autocast_enabled("cpu")
except TypeError:  # PyTorch before 2.4
    _autocasts = _autocasts_before_devices_were_named
else:
    _autocasts = _autocasts_on_cpu
