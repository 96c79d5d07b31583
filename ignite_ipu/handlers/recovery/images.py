"""A run's whole state between two iterations, which its file is written from without asking anything of the device."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, Mapping, Optional

from torch import nn

from ignite_ipu.checkpoints.plain_states import without_methods
from ignite_ipu.checkpoints.writing import write_checkpoint
from ignite_ipu.handlers.recovery.replay import Snapshot
from ignite_ipu.optimizers import OptimizerLink
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["RunImage", "RunImages"]


@dataclasses.dataclass(frozen=True)
class RunImage:
    """A run's whole state between two iterations.

    Attributes:
        states: State dictionaries of the other objects, by their name in the file.
        extra: The model's state dictionary, with None for what is in the snapshot.
    """

    iteration: int
    snapshot: Snapshot
    states: Dict[str, Any]
    extra: Dict[str, Any]


class RunImages:
    """Keeps the newest image of a run.

    Args:
        objects: What else belongs to the state, by its name in the file.

    Attributes:
        newest: None before the first one was taken.
    """

    def __init__(self, model: nn.Module, weights: Weights, link: OptimizerLink, objects: Mapping[str, Any]) -> None:
        self._model, self._weights, self._link = model, weights, link
        self._objects = objects
        self._positions: Dict[str, int] = {}
        self._writing = threading.Lock()
        self.newest: Optional[RunImage] = None

    def take(self, iteration: int, snapshot: Snapshot) -> None:
        """Make what everything is now the newest image."""
        self._positions = self._positions or self._weights.positions(self._model)
        extra = {
            name: None if name in self._positions else copy.deepcopy(value)
            for name, value in self._model.state_dict().items()
        }
        states = {name: copy.deepcopy(without_methods(value.state_dict())) for name, value in self._objects.items()}
        self.newest = RunImage(iteration, snapshot, states, extra)

    def write(self, folder: Path) -> Optional[Path]:
        """Write the newest image as `recovery_<iteration>.pt`; returns the file, None when there is no image.

        Any thread may call it.

        Raises:
            CheckpointError: It cannot be written.
        """
        with self._writing:
            image = self.newest
            if image is None:
                return None
            path = folder / f"recovery_{image.iteration}.pt"
            write_checkpoint(path, self._content(image))
            return path

    def _content(self, image: RunImage) -> Dict[str, Any]:
        weights: OrderedDict[str, Any] = OrderedDict(image.extra)
        for name in weights:
            if name in self._positions:
                weights[name] = image.snapshot.weights[self._positions[name]]
        return {**image.states, "model": weights, "optimizer": self._link.state_dict(image.snapshot.optimizer)}
