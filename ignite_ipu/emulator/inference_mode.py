"""`torch.inference_mode` around a device call: what the call does is what it does without."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, TypeVar

import torch

__all__ = ["left", "unaffected"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Leave inference mode in the `with` block, with gradients enabled or not as they were.

    Tensors that are made in it do not count their changes, which a trace goes by, and cannot be changed after it, as a
    program changes its weights.
    """
    enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield


def unaffected(function: _Function) -> _Function:
    """Let a function run outside of inference mode, whoever calls it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with left():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]
