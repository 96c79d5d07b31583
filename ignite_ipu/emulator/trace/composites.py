"""Functions of PyTorch that are written in Python and are traced by what they call, not as one operator.

A function that is given a function is one: what it is given may use layers of the model, and runs in the trace alone.
Attention is another where it mixes half and float, which its layers settle one by one.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Set

import torch

from ignite_ipu.emulator.values.nested import leaves

__all__ = ["is_traced_by_parts", "unfolded"]

_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_MODULES = (torch.functional.__name__, torch.nn.functional.__name__)
# Of the layers in them, each follows the type of its own activation.
_WITH_LAYERS = (torch.nn.functional.multi_head_attention_forward,)
_MIXED = {torch.float16, torch.float32}
_CALLABLE_VALUES = (type, torch.device)  # a device is callable because it can decorate a function


def is_traced_by_parts(func: Callable[..., Any], arguments: Any, types_of: Callable[[Any], Set[torch.dtype]]) -> bool:
    """Tell whether what `func` calls is to be traced, and not `func` itself.

    Args:
        types_of: Returns the types of the traced tensors in a value.
    """
    if not isinstance(func, types.FunctionType) or func.__module__ not in _MODULES:
        return False  # a tensor's methods take hooks, which are no part of what they compute
    if func in _WITH_LAYERS and len(types_of(arguments) & _MIXED) > 1:
        return True
    return any(callable(leaf) and not isinstance(leaf, _CALLABLE_VALUES) for leaf in leaves(arguments))


def unfolded(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyTorch's without the handing over to a trace that it begins with.

    What it calls is handed over as ever.
    """
    assert isinstance(func, types.FunctionType)
    names = {**func.__globals__, **{name: _nothing for name in _ASKS if name in func.__globals__}}
    body = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return functools.wraps(func)(body)


def _nothing(*tensors: Any) -> bool:
    return False
