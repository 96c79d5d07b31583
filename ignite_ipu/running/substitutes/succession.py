"""Trainers that Ignite's factories made for a script: one at a time trains a model, and what it trains."""

from __future__ import annotations

import os
import weakref
from typing import Any, FrozenSet, Optional, Tuple

import torch
from ignite.engine import Engine, Events
from torch import nn

from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.running.journal import Journal
from ignite_ipu.running.ownership import Line
from ignite_ipu.session.processes import unwrapped
from ignite_ipu.session.session import IPUSession, known_session

__all__ = ["EngineWeights", "Succession"]


class Succession:
    """Lets a trainer that a script makes take a model over from the one that it made before.

    One program at a time trains a model: the trainer before may not go on.

    Args:
        journal: Where refusals go.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._newest: weakref.WeakKeyDictionary[IPUSession, Tuple[Optional[Line], weakref.ref[Engine]]]
        self._newest = weakref.WeakKeyDictionary()

    def make_way(self, model: Any, line: Optional[Line]) -> str:
        """Stop the trainer that a model has, for another; returns where it was made, "" if there is none.

        Args:
            model: The model.
            line: Where the script makes the other trainer.
        """
        session = known_session(unwrapped(model)) if isinstance(model, nn.Module) else None
        if session is None or session.training is None or session not in self._newest:
            return ""
        made, known = self._newest.pop(session)
        session.stop_training()
        trainer = known()
        if trainer is not None:
            trainer.add_event_handler(Events.ITERATION_STARTED, self._refuse, made, _place(line))
        return _place(made)

    def add(self, trainer: Any, line: Optional[Line]) -> None:
        """Note a trainer that the script has made at a line."""
        self._newest[trainer.ipu] = line, weakref.ref(trainer)

    def _refuse(self, made: Optional[Line], other: str) -> None:
        raise self._journal.refuse(
            made,
            "create_supervised_trainer()",
            f"another trainer, made at {other}, has taken this one's model over, and one program at a time trains a "
            "model. Run this trainer to its end before the other is made, or train with one trainer.",
        )


class EngineWeights:
    """The weights that trainers hold at present; their gradients are on the device, and None on the host."""

    def __init__(self) -> None:
        # How many tensors a session had, and their ids; it holds on to them, so that no id becomes another tensor's.
        self._known: weakref.WeakKeyDictionary[IPUSession, Tuple[int, FrozenSet[int]]] = weakref.WeakKeyDictionary()

    def add(self, session: IPUSession) -> None:
        """Count the weights of a session, as long as it has a trainer."""
        self._known[session] = (0, frozenset())

    def trains(self, tensor: torch.Tensor, hidden: bool = False) -> bool:
        """Tell whether a trainer trains this tensor, and if asked, whether its gradient is hidden."""
        # Asked in the ordinary way, a wrapped parameter would download all weights first.
        with torch._C.DisableTorchFunctionSubclass():
            if not requires_grad(tensor):
                return False
        with_trainer = [each for each in self._known if each.training is not None]
        if hidden:
            with_trainer = [session for session in with_trainer if not session.hooks.shows_gradients]
        return any(id(tensor) in self._ids(session) for session in with_trainer)

    def _ids(self, session: IPUSession) -> FrozenSet[int]:
        tensors = session.weights.tensors
        count, ids = self._known[session]
        if count != len(tensors):  # they are only ever added to
            ids = frozenset(map(id, tensors))
            self._known[session] = (len(tensors), ids)
        return ids


def _place(line: Optional[Line]) -> str:
    return "an unknown line" if line is None else f"{os.path.basename(line[0])}:{line[1]}"
