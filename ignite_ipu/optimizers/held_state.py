"""State of an optimizer that code holds over updates: entries that change in place, as in PyTorch."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Mapping

import torch

from ignite_ipu.program.tensors.sharing import address_of, tensors_at
from ignite_ipu.torch_names.tensors import sharers_of


def put_entries(entries: Dict[str, Any], newer: Mapping[str, Any]) -> None:
    """Copy newer values into the entries of a parameter; its tensors stay the same objects, as in PyTorch."""
    with torch.no_grad():
        for name, value in newer.items():
            known = entries.get(name)
            if isinstance(value, torch.Tensor) and isinstance(known, torch.Tensor) and _alike(known, value):
                known.copy_(value)
            else:
                entries[name] = value.clone() if isinstance(value, torch.Tensor) else value


def _alike(known: torch.Tensor, value: torch.Tensor) -> bool:
    return (known.shape, known.dtype, known.device) == (value.shape, value.dtype, value.device)


def is_held(attributes: Mapping[str, Any]) -> bool:
    """Return whether code holds the `state` in an optimizer's attributes: all, entries, or memory of a tensor."""
    unheld = _most_references({"state": {0: {"": torch.zeros(1)}}})
    if any(found > least for found, least in zip(_most_references(attributes), unheld)):
        return True
    tensors = [value for entries in attributes["state"].values() for value in entries.values()]
    uncounted = {id(each): each for each in tensors if isinstance(each, torch.Tensor) and sharers_of(each) is None}
    places = {address_of(each) for each in uncounted.values()} - {0}
    return bool(places) and bool(tensors_at(places, uncounted))


def _most_references(attributes: Mapping[str, Any]) -> List[int]:
    """Return the largest numbers of references: to the state, to entries of a parameter, to a tensor and its memory.

    PyTorch before 2.1 does not count those to memory.
    """
    most = [sys.getrefcount(attributes["state"]), 0, 0, 0]
    for entries in attributes["state"].values():
        most[1] = max(most[1], sys.getrefcount(entries))
        for value in entries.values():
            if isinstance(value, torch.Tensor):
                most[2] = max(most[2], sys.getrefcount(value))
                most[3] = max(most[3], sharers_of(value) or 0)
    return most
