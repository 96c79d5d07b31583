"""Which captured model a tensor belongs to, as its parameter or buffer."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Tuple

import torch

if TYPE_CHECKING:
    from ignite_ipu.deferred.model.model import CapturedModel

__all__ = ["OWNED", "own", "parameter_of"]

OWNED: Dict[int, Tuple[weakref.ref[CapturedModel], str]] = {}
"""By `id`: who owns a tensor, and its name there. An id may be another tensor's by now; `parameter_of` finds out."""


def own(model: CapturedModel, tensors: Mapping[str, torch.Tensor]) -> None:
    """Let a captured model own tensors, by their names, as long as it lives."""
    reference = weakref.ref(model)
    for name, tensor in tensors.items():
        OWNED[id(tensor)] = (reference, name)
    weakref.finalize(model, _forget, [id(tensor) for tensor in tensors.values()], reference).atexit = False


def parameter_of(tensor: torch.Tensor) -> Optional[Tuple[CapturedModel, str]]:
    """Return which captured model has a tensor, and under which name; None for any other tensor."""
    found = OWNED.get(id(tensor))
    if found is None:
        return None
    model, name = found[0](), found[1]
    return (model, name) if model is not None and model.owns(name, tensor) else None


def _forget(keys: List[int], reference: weakref.ref[CapturedModel]) -> None:
    for key in keys:
        if key in OWNED and OWNED[key][0] is reference:
            del OWNED[key]
