"""Tensors that share the memory of weights and that somebody keeps: they change as the weights do, natively.

What `parameter.data`, `parameter.detach()` and the entries of a state dictionary are. A read of them asks nobody for
the newest weights, so these are brought to the host after each update, as long as somebody has one.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Callable, Container, Dict, Optional, Tuple

import torch

__all__ = ["is_kept", "note_alias"]

_Holder = Callable[[], Optional[Dict[str, Any]]]
_ALIASES: Dict[int, Tuple[weakref.ref[torch.Tensor], _Holder]] = {}
# To a tensor that is asked for: from the variable in the loop, and from the call that counts.
_OUR_REFERENCES = 2


def _nobody() -> None:
    return None


def _forget(key: int, reference: Any) -> None:
    _ALIASES.pop(key, None)


def note_alias(tensor: Any, holder: _Holder = _nobody) -> None:
    """Take notice of a tensor that shares the memory of a weight.

    Args:
        tensor: The tensor; whatever is none is left alone.
        holder: Weakly, a dictionary that brings the newest weights itself when it is asked for this tensor.
    """
    if type(tensor) is torch.Tensor:
        key = id(tensor)
        _ALIASES[key] = weakref.ref(tensor, functools.partial(_forget, key)), holder


def is_kept(memory: Callable[[], Container[int]]) -> bool:
    """Tell whether somebody keeps a tensor that shares the memory of a weight.

    Args:
        memory: Returns where the weights are.
    """
    places: Optional[Container[int]] = None
    for reference, holder in list(_ALIASES.values()):
        tensor, state = reference(), holder()
        if tensor is not None and sys.getrefcount(tensor) > _OUR_REFERENCES + (state is not None):
            places = memory() if places is None else places
            if tensor.untyped_storage().data_ptr() in places:
                return True
    return False
