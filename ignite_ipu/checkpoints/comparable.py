"""Tensors as plain data, so that state dictionaries that hold them can be compared by `==`, as Ignite's can."""

from __future__ import annotations

import base64
from typing import Any, Dict, Iterable, Mapping

import torch

_KEYS = ("dtype", "shape", "base64")
PLAIN = frozenset([int, float, str, bool, type(None)])
"""Types of values that are copies of themselves."""


def are_plain(values: Iterable[Any]) -> bool:
    """Return whether values are numbers, strings and None alone.

    A random state is a list of thousands of numbers. One look at all their types saves a call for each.
    """
    return PLAIN.issuperset(map(type, values))


def comparable(value: Any) -> Any:
    """Return nested plain data with a dictionary of text in the place of each tensor, for `restored`."""
    if isinstance(value, torch.Tensor):
        return _encoded(value.detach().cpu())
    if isinstance(value, Mapping):
        return {key: comparable(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(value if are_plain(value) else map(comparable, value))
    return value


def restored(value: Any) -> Any:
    """Return the original of `comparable`; tensors stay the same."""
    if isinstance(value, Mapping):
        if tuple(value) == _KEYS:
            return _decoded(value)
        return {key: restored(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(value if are_plain(value) else map(restored, value))
    return value


def _encoded(tensor: torch.Tensor) -> Dict[str, Any]:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    name = str(tensor.dtype).rpartition(".")[2]
    return dict(zip(_KEYS, (name, list(tensor.shape), base64.b64encode(content).decode("ascii"))))


def _decoded(saved: Mapping[str, Any]) -> torch.Tensor:
    dtype, content = getattr(torch, saved["dtype"]), bytearray(base64.b64decode(saved["base64"]))
    if not content:
        return torch.empty(saved["shape"], dtype=dtype)
    return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(saved["shape"])
