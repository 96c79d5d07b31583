"""Which tensors are trained by engines that Ignite's factories made for a script."""

from __future__ import annotations

import weakref
from typing import FrozenSet, Tuple

import torch

from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.session.session import IPUSession

__all__ = ["EngineWeights"]


class EngineWeights:
    """The weights that trainers hold at present; their gradients are on the device, and None on the host."""

    def __init__(self) -> None:
        # How many tensors a session had, and their ids; it holds on to them, so that no id becomes another tensor's.
        self._known: weakref.WeakKeyDictionary[IPUSession, Tuple[int, FrozenSet[int]]] = weakref.WeakKeyDictionary()

    def add(self, session: IPUSession) -> None:
        """Count the weights of a session, as long as it has a trainer."""
        self._known[session] = (0, frozenset())

    def trains(self, tensor: torch.Tensor) -> bool:
        """Tell whether a trainer trains this tensor."""
        if not _trained(tensor):
            return False
        with_trainer = [session for session in self._known if session.training is not None]
        return any(id(tensor) in self._ids(session) for session in with_trainer)

    def _ids(self, session: IPUSession) -> FrozenSet[int]:
        tensors = session.weights.tensors
        count, ids = self._known[session]
        if count != len(tensors):  # they are only ever added to
            ids = frozenset(map(id, tensors))
            self._known[session] = (len(tensors), ids)
        return ids


def _trained(tensor: torch.Tensor) -> bool:
    # Asked in the ordinary way, a wrapped parameter would download all weights first.
    with torch._C.DisableTorchFunctionSubclass():
        return requires_grad(tensor)
