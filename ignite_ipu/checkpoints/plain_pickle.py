"""A pickle module for `torch.load` that makes tensors, numbers, strings and containers of them, and nothing else.

`weights_only=True` would do, but PyTorch 2.0, which PopTorch 3.3 needs, refuses objects that schedulers keep in their
state: `collections.Counter`, in which `MultiStepLR` has its milestones, and sets.
"""

from __future__ import annotations

import collections
import pickle
from typing import Any, Sequence

from ignite_ipu.errors import CheckpointError
from ignite_ipu.torch_names.tensors import REBUILDERS

# Each gives something no larger than its arguments.
_READABLE = frozenset(
    (
        *(f"torch.{kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char")),
        *("torch.ByteStorage", "torch.BoolStorage", "torch.ComplexFloatStorage", "torch.ComplexDoubleStorage"),
        *(f"torch.{name}" for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool")),
        *(f"torch.{name}" for name in ("uint8", "int8", "int16", "int32", "int64", "Size", "device")),
        *REBUILDERS,
        *("collections.OrderedDict", "collections.Counter", "builtins.set", "__builtin__.set"),
    )
)
_LARGEST_KEY = 1 << 48
_METHOD = (
    ". So are methods written, which some schedulers keep in their state: CheckpointSaver leaves these out. If you "
    "trust the file, load it with Checkpoint.load_objects(objects, torch.load(path, weights_only=False))"
)
_HINTS = {"builtins.getattr": _METHOD, "__builtin__.getattr": _METHOD}


def _set_attributes(unpickler: Any) -> None:
    """Set attributes of ordered dictionaries alone: the metadata of a module's state dictionary."""
    state, target = unpickler.stack.pop(), unpickler.stack[-1]
    if type(target) is not collections.OrderedDict or type(state) is not dict:
        raise CheckpointError(f"it sets attributes of {type(target).__name__}.")
    vars(target).update(state)


def _check_keys(keys: Sequence[Any]) -> None:
    """Refuse keys whose hashes take long, or are made to be alike: deeply nested tuples, huge numbers."""
    if not all(isinstance(key, (str, float)) or (isinstance(key, int) and abs(key) < _LARGEST_KEY) for key in keys):
        raise CheckpointError("a dictionary in it has keys that are neither strings nor numbers.")


def _set_item(unpickler: Any) -> None:
    _check_keys(unpickler.stack[-2:-1])
    pickle._Unpickler.dispatch[pickle.SETITEM[0]](unpickler)


def _set_items(unpickler: Any) -> None:
    _check_keys(unpickler.stack[::2])
    pickle._Unpickler.dispatch[pickle.SETITEMS[0]](unpickler)


# The one written in Python: the other sizes its memo by the numbers in the file, and has no table of opcodes.
class Unpickler(pickle._Unpickler):
    """Looks up the names that tensors and plain data need, and raises `CheckpointError` for others."""

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in _READABLE:
            raise CheckpointError(f"it holds a {full}, which would take code to rebuild{_HINTS.get(full, '')}.")
        return super().find_class(module, name)

    dispatch = {
        **pickle._Unpickler.dispatch,
        pickle.BUILD[0]: _set_attributes,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
    }
