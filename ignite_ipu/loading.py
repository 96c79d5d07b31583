"""Notices what `model.load_state_dict` loads: it is the newest, wherever the weights were before."""

from __future__ import annotations

import functools
import operator
import weakref
from typing import Any

from torch import nn

from ignite_ipu.weights import Weights

__all__ = ["follow_loading"]


def follow_loading(model: nn.Module, weights: Weights) -> weakref.finalize[Any, Weights]:
    """Have `weights` know when something is loaded into the model, as long as they exist.

    Returns:
        What leaves the model alone again when it is called.
    """
    handle = model.register_load_state_dict_post_hook(_NotesLoading(weights))  # type: ignore[no-untyped-call]
    leave = weakref.finalize(weights, handle.remove)
    leave.atexit = False
    return leave


class _NotesLoading:
    """Notices `model.load_state_dict`: what it loads is the newest."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weakref.ref(weights)

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        weights = self._weights()
        if weights is not None:
            weights.host_changed()

    def __reduce__(self) -> Any:
        # A pickle or a copy of the model is on no device. In its place goes something that does nothing when it is
        # called so, and that can be loaded where this library is not installed.
        return functools.partial, (operator.setitem, {})
