"""Attributes that code has set on tensors, or that a class of tensors has, which the device's tensors get, too."""

from __future__ import annotations

from typing import Any, Dict

import torch

from ignite_ipu.errors import BatchError

_OWN = "_ignite_ipu_"  # what this library notes on tensors
_CARRIED = f"{_OWN}carried"
_WITHOUT = ("torch", "ignite_ipu", "poptorch")  # whose classes of tensors have attributes for their own work


def attributes_on(tensor: torch.Tensor) -> Dict[str, Any]:
    """Return the attributes of a tensor that are the user's; weights have none that count."""
    held = tensor.__dict__
    if not held:
        return held
    if _CARRIED in held:
        return {name: held[name] for name in held[_CARRIED] if name in held}
    kind = type(tensor)
    if kind is not torch.Tensor and kind.__module__.split(".")[0] in _WITHOUT:
        return {}
    return {name: value for name, value in held.items() if not name.startswith(_OWN)}


def carrying(tensor: torch.Tensor, attributes: Dict[str, Any]) -> torch.Tensor:
    """Return a tensor after giving it attributes that another one has, unless it is that one.

    Raises:
        BatchError: One of the names is PopTorch's own.
    """
    held = tensor.__dict__
    if _CARRIED not in held:
        if attributes.keys() <= held.keys() and attributes_on(tensor):
            return tensor
        taken = held.keys() & attributes.keys()
        if taken:
            raise BatchError(
                f"A tensor has an attribute {min(taken)!r}, a name that PopTorch's tensors have for their own. Rename "
                "it, or hand it over as an argument beside the tensor."
            )
        held[_CARRIED] = tuple(attributes)
    held.update(attributes)
    return tensor
