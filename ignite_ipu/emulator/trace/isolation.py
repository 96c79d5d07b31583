"""PyTorch's contexts around a device call: they have no effect on the call.

On an IPU a compiled program knows nothing of `torch.autocast`, a default device or hooks of autograd's. The emulator
computes with PyTorch's own operators, which would follow them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import Any, Callable, Iterator, TypeVar

import torch

from ignite_ipu.torch_names.dispatch import (
    autocasts_on_cpu,
    function_modes_left,
    has_function_modes,
    jit_trace_left,
    saved_tensor_hooks,
    saved_tensor_hooks_left,
    tracing_state,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unaffected(function: _Function) -> _Function:
    """Let a function run outside of inference mode, CPU autocast, saved tensor hooks, function modes and jit traces.

    A default device is a function mode.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (
            torch.is_inference_mode_enabled()
            or autocasts_on_cpu()
            or has_function_modes()
            or saved_tensor_hooks(False) is not None
            or tracing_state() is not None
        ):
            return function(*args, **kwargs)
        with function_modes_left(), jit_trace_left(), inference_mode_left(), saved_tensor_hooks_left():
            with torch.autocast("cpu", enabled=False):
                return function(*args, **kwargs)

    return call  # type: ignore[return-value]


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an attribute that PyTorch defines on `owner` be `value` in the `with` block."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Turn:
    """Holder of a re-entrant lock, which a process that was forked while another thread held it finds free."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()


@contextlib.contextmanager
def inference_mode_left() -> Iterator[None]:
    """Leave inference mode in the `with` block, with gradients enabled or not as they were.

    Tensors that are made in it do not count their changes, which a trace goes by, and cannot be changed after it, as a
    program changes its weights.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield
