"""Number formats that an IPU lacks: calls that compute in them, and the lines that have converted models to them."""

from __future__ import annotations

import weakref
from typing import Any, Iterable, List, Optional

import torch
from torch import nn

from ignite_ipu.capabilities import LACKED_FORMATS
from ignite_ipu.capabilities.traced import FORMAT, NO_FUNCTION
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.traced_places import FileLine, refusal_at
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_HOST_TENSORS = (torch.Tensor, nn.Parameter)
_BY_NAME = {name.rpartition(".")[2]: getattr(torch, name.rpartition(".")[2]) for name in LACKED_FORMATS}
_LACKED = frozenset(_BY_NAME.values())
_METHODS = frozenset(getattr(torch.Tensor, name) for name in _BY_NAME if hasattr(torch.Tensor, name))
_CONVERTED: weakref.WeakKeyDictionary[nn.Module, FileLine] = weakref.WeakKeyDictionary()
# The last line that has set a format of new tensors which an IPU lacks.
_DEFAULTS: List[FileLine] = []


def note_conversion(module: nn.Module, to: Iterable[Any], line: Optional[FileLine]) -> None:
    """Note the line that converts a model, if that is to a number format which an IPU lacks."""
    formats = (each.dtype if isinstance(each, torch.Tensor) else each for each in to)
    if line is not None and any(isinstance(each, torch.dtype) and each in _LACKED for each in formats):
        _CONVERTED[module] = line


def note_default(to: Any, line: Optional[FileLine]) -> None:
    """Note the line that sets the number format of new tensors, a type or its name, if an IPU lacks the format.

    Tensors keep it when the format is set back, so the line stays known.
    """
    kind = getattr(torch, to.rpartition(".")[2], None) if isinstance(to, str) else to
    if line is not None and (kind if isinstance(kind, torch.dtype) else getattr(kind, "dtype", None)) in _LACKED:
        _DEFAULTS[:] = [line]


def forget_defaults() -> None:
    """Forget the noted line that sets the number format of new tensors."""
    _DEFAULTS.clear()


def refuse_lacked_formats(values: Iterable[Any]) -> None:
    """Refuse a call by its function and arguments, at the line that has converted the model if one has.

    Tensors that no line converts may have the format that new tensors are given. Complex numbers that operators return
    are left to the compiler, which refuses these operators.
    """
    given = list(values)
    lacked = next(filter(None, map(_lacked_format, given)), None)
    if lacked is not None:
        place = next(filter(None, map(_converted_at, given)), None) or _default_at(given) or current_line().place
        raise CaptureError(refusal_at(FORMAT, place, NO_FUNCTION, str(lacked)))


def _lacked_format(value: Any) -> Optional[torch.dtype]:
    """Return the number format that an IPU lacks if a function converts to it, or an argument names it or has it."""
    if isinstance(value, torch.dtype):
        return value if value in _LACKED else None
    if callable(value):
        return _BY_NAME.get(getattr(value, "__name__", "")) if value in _METHODS else None
    return torch.bfloat16 if type(value) in _HOST_TENSORS and value.dtype is torch.bfloat16 else None


def _default_at(given: List[Any]) -> Optional[FileLine]:
    """Return the line that has set the format of new tensors, None if a call names its format itself."""
    named = any(not isinstance(each, torch.Tensor) and _lacked_format(each) is not None for each in given)
    return _DEFAULTS[0] if _DEFAULTS and not named else None


def _converted_at(value: Any) -> Optional[FileLine]:
    """Return the line that has converted the model which has a parameter, None for other values."""
    if not isinstance(value, nn.Parameter):
        return None
    with DisableTorchFunctionSubclass():
        for module, line in list(_CONVERTED.items()):
            if any(each is value for each in all_parameters(module)):
                return line
    return None
