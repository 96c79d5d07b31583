"""What a model keeps in Python attributes: a compiled program has their values of when it was traced.

A number that a loop anneals, a dropout rate, a mask that is replaced: a changed value is another program. A `forward`
that changes them itself would run once, while it is traced, and natively in every step.
"""

from __future__ import annotations

import enum
import operator
from typing import Any, Callable, Dict, Hashable, List, Tuple, TypeVar

import torch
from torch import nn

__all__ = ["PythonState", "changed_by"]

T = TypeVar("T")
_PLAIN = (int, float, complex, str, bytes, enum.Enum, type(None), torch.dtype)
_READABLE = (*_PLAIN, torch.Tensor, list, tuple, dict)
_OWN = frozenset([*vars(nn.Module()), "_is_full_backward_hook", "_forward_hooks_always_called"])
_LONGEST = 64
# The attributes of a module are faster to read than the module.
_is_training: Callable[[Dict[str, Any]], bool] = operator.itemgetter("training")


class PythonState:
    """The attributes of a model's modules that a trace reads as constants.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names: List[Tuple[str, str]] = []
        self._places: List[Tuple[Dict[str, Any], str]] = []
        self._modules = [module.__dict__ for module in model.modules()]
        self._sizes = [len(attributes) for attributes in self._modules]
        for path, module in model.named_modules():
            # Of PyTorch's layers only numbers such as rates can change: the rest says of which shape they were made.
            kinds = (float,) if type(module).__module__.startswith("torch.nn.") else _READABLE
            for name, value in module.__dict__.items():
                if name not in _OWN and isinstance(value, kinds):
                    self._names.append((path, name))
                    self._places.append((module.__dict__, name))
        # While they are the same objects, and none can be changed in place, the values are the same.
        self._found: List[Any] = []
        self._fixed = False
        self._values: List[Hashable] = []

    @property
    def complete(self) -> bool:
        """Whether no attribute has come or gone since."""
        return list(map(len, self._modules)) == self._sizes

    def training(self) -> List[bool]:
        """Return whether each module is in training mode."""
        return list(map(_is_training, self._modules))

    def values(self) -> List[Hashable]:
        """Return the values of this moment, comparable."""
        found = [attributes.get(name) for attributes, name in self._places]
        if self._fixed and all(map(operator.is_, found, self._found)):
            return self._values
        self._found = found
        self._fixed = all(isinstance(value, _PLAIN) for value in found)
        self._values = [_value(value) for value in found]
        return self._values

    def changed(self, before: List[Hashable]) -> List[str]:
        """Return the names of the attributes that had other values before."""
        pairs = zip(self._names, before, self.values())
        return [f"{path}.{name}" if path else name for (path, name), old, new in pairs if old != new]


def changed_by(model: nn.Module, call: Callable[[], T]) -> Tuple[T, List[str]]:
    """Return what `call` returns, and the names of the attributes of `model` that it has changed, set or deleted."""
    state = PythonState(model)
    before = state.values()
    result = call()
    changed = state.changed(before)
    return result, changed if changed or state.complete else ["new ones"]


def _value(value: Any) -> Hashable:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, torch.Tensor):
        # A tensor that is replaced is another object, and one that is written into has another version.
        with torch._C.DisableTorchFunctionSubclass():
            return id(value), 0 if torch.Tensor.is_inference(value) else value._version
    if isinstance(value, dict):
        return tuple([(_value(key), _value(item)) for key, item in value.items()]) if len(value) <= _LONGEST else None
    if isinstance(value, (list, tuple)):
        return tuple([_value(item) for item in value]) if len(value) <= _LONGEST else None
    return None
