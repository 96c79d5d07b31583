"""Arguments that functions of PyTorch do not hand on to whoever overrides them, a trace for example.

`l1_loss` is overridden without its `weight`, `chain_matmul` without its `out`. They are still in the function's frame.
"""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable, Dict, Mapping, Tuple

from torch.overrides import handle_torch_function

__all__ = ["found_again"]

_HANDS_OVER = getattr(handle_torch_function, "__code__", None)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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
    return {**kwargs, **_missing(func, args, kwargs, frame.f_locals)}


def _missing(
    func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Mapping[str, Any], called_with: Mapping[str, Any]
) -> Dict[str, Any]:
    signature = _signature(func)
    given = signature.bind_partial(*args, **kwargs).arguments
    return {
        name: called_with[name]
        for name, parameter in signature.parameters.items()
        if name not in given
        and parameter.kind not in _VARIADIC
        and name in called_with
        and called_with[name] is not parameter.default
    }


@functools.lru_cache(maxsize=None)
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func, follow_wrapped=False)  # the frame is that of the wrapper
