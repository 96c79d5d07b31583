"""PyTorch's contexts around a device call: what the call does is what it does without them.

On an IPU a compiled program knows nothing of `torch.autocast`, a default device or hooks of autograd's. The emulator
computes with PyTorch's own operators, which would follow them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from typing import Any, Callable, Iterator, List, Optional, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unaffected(function: _Function) -> _Function:
    """Let a function run outside of inference mode, CPU autocast, saved tensor hooks, function modes and jit traces.

    A default device is a function mode.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (
            torch.is_inference_mode_enabled()
            or _autocasts()
            or torch._C._len_torch_function_stack()
            or saved_tensor_hooks_active()
            or torch._C._get_tracing_state() is not None
        ):
            return function(*args, **kwargs)
        with _function_modes_left(), _traces_left(), inference_mode_left(), saved_tensor_hooks_left():
            with torch.autocast("cpu", enabled=False):
                return function(*args, **kwargs)

    return call  # type: ignore[return-value]


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


def _autocasts() -> bool:
    try:
        return torch.is_autocast_enabled("cpu")
    except TypeError:  # PyTorch before 2.4
        return torch.is_autocast_cpu_enabled()


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let an attribute that PyTorch defines on `owner` be `value` in the `with` block."""
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


_AUTOGRAD: Any = torch._C._autograd
# An older PyTorch cannot tell which hooks there are: they stay in force there.
_INNERMOST: Optional[Callable[[bool], Any]] = getattr(_AUTOGRAD, "_top_saved_tensors_default_hooks", None)


def saved_tensor_hooks_active() -> bool:
    """Tell whether there are hooks for the tensors that autograd saves; never with an older PyTorch."""
    return _INNERMOST is not None and _INNERMOST(False) is not None


@contextlib.contextmanager
def saved_tensor_hooks_left() -> Iterator[None]:
    """Have autograd save tensors as they are in the `with` block.

    The hooks are the host's: they move what they are given elsewhere, or change it. A trace has no values to move, and
    the device keeps its own.
    """
    hooks: List[Any] = []
    while saved_tensor_hooks_active():
        assert _INNERMOST is not None
        hooks.append(_INNERMOST(False))
        _AUTOGRAD._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _AUTOGRAD._push_saved_tensors_default_hooks(pack, unpack)


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
