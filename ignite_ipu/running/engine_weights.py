"""Which tensors are trained by engines that Ignite's factories made for a script."""

from __future__ import annotations

import weakref

import torch

from ignite_ipu.session import IPUSession

__all__ = ["EngineWeights"]


class EngineWeights:
    """The weights that trainers hold at present; their gradients are on the device, and None on the host."""

    def __init__(self) -> None:
        self._sessions: weakref.WeakSet[IPUSession] = weakref.WeakSet()

    def add(self, session: IPUSession) -> None:
        """Count the weights of a session, as long as it has a trainer."""
        self._sessions.add(session)

    def trains(self, tensor: torch.Tensor) -> bool:
        """Tell whether a trainer trains this tensor."""
        if not _trained(tensor):
            return False
        with_trainer = [session for session in self._sessions if session.training is not None]
        return any(tensor is each for session in with_trainer for each in session.weights.tensors)


def _trained(tensor: torch.Tensor) -> bool:
    # Asked in the ordinary way, a wrapped parameter would download all weights first.
    with torch._C.DisableTorchFunctionSubclass():
        return bool(torch.Tensor.requires_grad.__get__(tensor))  # type: ignore[attr-defined]
