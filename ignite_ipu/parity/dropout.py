"""Dropout that is switched off while two runs are compared, whose random numbers differ."""

from __future__ import annotations

import functools
from typing import Any, Callable, List

import torch.nn.functional
from torch import nn

from ignite_ipu.running.patches import Patches

_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_MODULES = (nn.RNNBase, nn.MultiheadAttention)


def switch_off_dropout(patches: Patches) -> List[str]:
    """Switch off dropout in functions and layers until `patches` are undone; returns a list that names used ones."""
    used: List[str] = []

    def note(name: str, probability: float) -> None:
        if probability and name not in used:
            used.append(name)

    def without_dropout(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(input: Any, p: float = 0.5, *args: Any, **kwargs: Any) -> Any:
            note(original.__name__, p)
            return original(input, 0.0, *args, **kwargs)

        return function

    def attention(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(
            query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
        ) -> Any:
            note(original.__name__, dropout_p)
            return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

        return function

    def made(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def initialise(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            note(type(module).__name__, module.dropout)
            module.dropout = 0.0

        return initialise

    functions = torch.nn.functional
    for name in _FUNCTIONS:
        if hasattr(functions, name):
            patches.set(functions, name, without_dropout(getattr(functions, name)))
    patches.set(functions, "scaled_dot_product_attention", attention(functions.scaled_dot_product_attention))
    for kind in _MODULES:
        patches.set(kind, "__init__", made(kind.__init__))
    return used
