"""Functions of PyTorch that do not hand all of themselves over to a trace, as `torch.overrides` lets them.

Some do not hand on all of their arguments: `l1_loss` is overridden without its `weight`, `chain_matmul` without its
`out`. They are still in the function's frame.

Some that are written in Python are traced by what they call, and not as one operator: a function that is given a
function, which may use layers of the model and runs in the trace alone; and attention where it mixes half and float,
which its layers settle one by one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import Any, Callable, Dict, Set, Tuple

import torch
from torch.overrides import handle_torch_function

from ignite_ipu.emulator.values.nested import leaves

_HANDS_OVER = getattr(handle_torch_function, "__code__", None)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_MODULES = (torch.functional.__name__, torch.nn.functional.__name__)
# Of the layers in them, each follows the type of its own activation.
_WITH_LAYERS = (torch.nn.functional.multi_head_attention_forward,)
_MIXED = {torch.float16, torch.float32}
_CALLABLE_VALUES = (type, torch.device)  # a device is callable because it can decorate a function


def found_again(func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Return `kwargs` with the arguments that `func` was called with and that are missing.

    To be called by an override itself: the caller's caller is `func`, or PyTorch's code between the two.
    """
    code = getattr(func, "__code__", None)
    if code is None:
        return kwargs
    frame = sys._getframe(1).f_back
    if frame is not None and frame.f_code is _HANDS_OVER:
        frame = frame.f_back
    if frame is None or frame.f_code is not code:
        return kwargs
    signature, called_with = _signature(func), frame.f_locals
    given = signature.bind_partial(*args, **kwargs).arguments
    missing = {
        name: called_with[name]
        for name, parameter in signature.parameters.items()
        if name not in given and parameter.kind not in _VARIADIC and name in called_with
    }
    return {
        **kwargs,
        **{name: value for name, value in missing.items() if value is not signature.parameters[name].default},
    }


@functools.lru_cache(maxsize=None)
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func, follow_wrapped=False)  # the frame is that of the wrapper


def original_of(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's own method of tensors where somebody has replaced it, and has called it in the replacement.

    PyTorch names the method, which its C++ code finds again on the class, replaced.
    """
    replaced = isinstance(func, types.FunctionType) and not (func.__module__ or "").startswith("torch.")
    if replaced and vars(torch.Tensor).get(func.__name__) is func:
        func = getattr(torch.Tensor.__base__, func.__name__, func)
    return func


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
    names = {**func.__globals__, **{name: lambda *tensors: False for name in _ASKS if name in func.__globals__}}
    body = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return functools.wraps(func)(body)
