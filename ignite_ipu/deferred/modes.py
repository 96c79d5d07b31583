"""What a compiled step depends on besides its recipe: modes and attributes of modules, and the trained weights."""

from __future__ import annotations

from typing import Callable, Hashable, List, NamedTuple, Optional

import torch
from torch import nn

from ignite_ipu.python_state import PythonState
from ignite_ipu.weights import Weights

__all__ = ["Modes", "ModesThen"]

_is_trained: Callable[[torch.Tensor], bool] = torch.Tensor.requires_grad.__get__  # type: ignore[attr-defined]


class ModesThen(NamedTuple):
    """The modes at one moment.

    Attributes:
        training: Whether each module is in training mode.
        trained: Whether each parameter requires gradients.
        values: The Python values that the modules' code reads.
    """

    training: List[bool]
    trained: List[bool]
    values: List[Hashable]


class Modes:
    """The modes of one model, exact at every update.

    Modules are asked every time, which takes about 0.1 microseconds for each. Parameters are asked when one of them was
    touched since.

    Args:
        model: The user's model.
        weights: Its weights.
    """

    def __init__(self, model: nn.Module, weights: Weights) -> None:
        self._model = model
        self._weights = weights
        self._state: Optional[PythonState] = None
        self._may_be_others = True
        self._parameters: List[torch.Tensor] = []
        self._trained: List[bool] = []
        self._looks = -1

    def look_again(self) -> None:
        """Look for modules and parameters again, of which there may be others now."""
        self._may_be_others = True

    def difference(self, before: ModesThen, now: ModesThen) -> str:
        """Return in words what differs between two moments."""
        if before.training != now.training:
            return "other modules are in training mode"
        if before.trained != now.trained:
            return "other parameters require gradients"
        names = [] if self._state is None else self._state.names
        pairs = zip(names, before.values, now.values)
        changed = list(dict.fromkeys(name for name, old, new in pairs if old != new))
        same_places = len(before.values) == len(names)
        return f"other Python values are read ({', '.join(changed)})" if same_places else "other Python values are read"

    def now(self) -> ModesThen:
        """Return the modes at this moment."""
        state = self._state
        if state is None or not state.complete or (self._may_be_others and not state.is_of(self._model)):
            state = self._state = PythonState(self._model)
            self._may_be_others = True
        if self._may_be_others:
            self._may_be_others = False
            self._parameters = list(self._model.parameters())
            self._looks = -1
        if self._looks != self._weights.looks:
            self._looks = self._weights.looks
            with torch._C.DisableTorchFunctionSubclass():
                self._trained = list(map(_is_trained, self._parameters))
        return ModesThen(state.training(), self._trained, state.values())
