"""Captured models as what is recorded knows them, and the tensors that are theirs: parameters and buffers."""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.program.user_code import Line

__all__ = ["OWNED", "Captured", "own", "parameter_of"]


class Captured(Protocol):
    """A captured model.

    Attributes:
        model: The user's model.
        path: Where in the whole's model it is.
    """

    model: nn.Module
    path: str

    @property
    def pending(self) -> Sequence[Any]:
        """Losses that went backward since the last update."""

    @property
    def name(self) -> str:
        """The model's name in messages."""

    @property
    def whole(self) -> Captured:
        """The captured model that runs the updates: this, or the one that it is trained as a part of."""

    @property
    def several(self) -> bool:
        """True if several optimizers train it."""

    def parameter_ids(self) -> Sequence[int]:
        """Return the ids of its parameters."""

    def owns(self, name: str, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is the model's parameter or buffer of this name."""

    def backward(self, loss: Any) -> None:
        """Take a loss that went backward."""

    @property
    def accumulates(self) -> Optional[bool]:
        """True if updates are made from several micro-batches, as far as the last one tells; None before the first."""

    def early_update(self, value: Any, operations: Sequence[Any]) -> Optional[Callable[[], None]]:
        """Return what runs the update of a value before its `optimizer.step()`; None if none can run for it."""

    def refuse_read(self, value: Any, what: str) -> None:
        """Refuse a read for which no update can run."""

    def confirm(self, line: Line) -> None:
        """Take that the loss goes backward for which the update has run already."""

    def computes_on_host(self, line: Line) -> bool:
        """Copy the newest weights to the host, to compute a value there that is read at a line; False if it cannot."""

    def check_weights(self) -> None:
        """Notice what was written into weights; refuse to compute with them where the device is ahead of the loop."""

    def show_weights(self, operations: Sequence[Any]) -> None:
        """Copy the newest weights to the host, and refuse operations that were recorded before somebody wrote some."""

    def beside(self, weights: Sequence[torch.Tensor]) -> Captured:
        """Return what captures weights that are no module's, to be trained together with this."""

    def know_norms(self, line: Line) -> bool:
        """Have the host compute awaited norms of gradients, which are read at a line; tells whether it could."""

    def computes_alone(self, call: Any) -> bool:
        """Tell whether the host can compute a call before those that were made before it have run."""

    def make_up_for(self, call: Any) -> bool:
        """Make a call on the host that is of no update, for what it writes; tells whether that was possible."""

    def called_with(self, structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
        """Return what a call of the model gives on the host, without a trace there."""

    def joined(self, others: Sequence[Any], line: Line) -> List[Any]:
        """Return what trains this and other models that the loss at a line is computed by, joined where one does."""


OWNED: Dict[int, Tuple[weakref.ref[Captured], str]] = {}
"""By `id`: who owns a tensor, and its name there. An id may be another tensor's by now; `parameter_of` finds out."""


def own(model: Captured, tensors: Mapping[str, torch.Tensor]) -> None:
    """Let a captured model own tensors, by their names, as long as it lives."""
    reference = weakref.ref(model)
    for name, tensor in tensors.items():
        OWNED[id(tensor)] = (reference, name)
    weakref.finalize(model, _forget, [id(tensor) for tensor in tensors.values()], reference).atexit = False


def parameter_of(tensor: torch.Tensor) -> Optional[Tuple[Captured, str]]:
    """Return which captured model has a tensor, and under which name; None for any other tensor."""
    found = OWNED.get(id(tensor))
    if found is None:
        return None
    model, name = found[0](), found[1]
    return (model, name) if model is not None and model.owns(name, tensor) else None


def _forget(keys: List[int], reference: weakref.ref[Captured]) -> None:
    for key in keys:
        if key in OWNED and OWNED[key][0] is reference:
            del OWNED[key]
