"""Parameters that are trained: noticed when layers are frozen or unfrozen, which a compiled program cannot know."""

from __future__ import annotations

from typing import Dict, List, NamedTuple

import torch
from torch import nn

from ignite_ipu.errors import listed
from ignite_ipu.program.tensors.raw import requires_grad

__all__ = ["Trainable", "TrainableChange"]

_MOST_NAMES = 4


class TrainableChange(NamedTuple):
    """Parameters whose `requires_grad` was changed.

    Attributes:
        frozen: Names of those that are not to be trained any more.
        unfrozen: Names of those that are to be trained again.
    """

    frozen: List[str]
    unfrozen: List[str]

    def __str__(self) -> str:
        parts = [
            f"{len(names)} {what} ({listed(names, _MOST_NAMES)})" for what, names in self._asdict().items() if names
        ]
        return " and ".join(parts)


class Trainable:
    """Remembers which parameters of a module were trainable when its program was compiled.

    Args:
        module: The module that is compiled.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters: Dict[str, torch.Tensor] = dict(module.named_parameters())
        self._compiled = self._now()

    def names(self) -> List[str]:
        """Return the names of the parameters that are trainable now."""
        return [name for name, trained in zip(self._parameters, self._now()) if trained]

    def note(self) -> None:
        """Remember the parameters that are trainable now as the ones of the program."""
        self._compiled = self._now()

    def change(self) -> TrainableChange:
        """Return what differs from the program; both lists are empty when nothing does."""
        now = self._now()
        if now == self._compiled:
            return TrainableChange([], [])
        flags = list(zip(self._parameters, self._compiled, now))
        frozen = [name for name, before, after in flags if before and not after]
        return TrainableChange(frozen, [name for name, before, after in flags if after and not before])

    def _now(self) -> List[bool]:
        with torch._C.DisableTorchFunctionSubclass():
            return list(map(requires_grad, self._parameters.values()))
