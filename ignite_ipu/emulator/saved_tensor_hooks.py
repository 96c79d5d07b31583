"""Leaving `torch.autograd.graph.saved_tensors_hooks` for a while."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator, List, Optional

import torch

__all__ = ["active", "left"]

_AUTOGRAD: Any = torch._C._autograd
# An older PyTorch cannot tell which hooks there are: they stay in force there.
_INNERMOST: Optional[Callable[[bool], Any]] = getattr(_AUTOGRAD, "_top_saved_tensors_default_hooks", None)


def active() -> bool:
    """Tell whether there are hooks on the tensors that autograd saves."""
    return _INNERMOST is not None and _INNERMOST(False) is not None


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Have autograd save tensors as they are in the `with` block.

    The hooks are the host's: they move what they are given elsewhere, or change it. A trace has no values to move, and
    the device keeps its own.
    """
    hooks: List[Any] = []
    while active():
        assert _INNERMOST is not None
        hooks.append(_INNERMOST(False))
        _AUTOGRAD._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _AUTOGRAD._push_saved_tensors_default_hooks(pack, unpack)
