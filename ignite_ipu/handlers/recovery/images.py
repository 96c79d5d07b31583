"""Images of a run's whole state between two iterations, from which a later process can go on."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Protocol, Tuple, runtime_checkable

import torch
from ignite.engine import Engine
from torch import nn

from ignite_ipu.checkpoints.writing import copied, write_checkpoint
from ignite_ipu.handlers.recovery.replay import Snapshot
from ignite_ipu.optimizers.host_link import Link
from ignite_ipu.program.module_tables import CHANGES
from ignite_ipu.session.weights.held_tensors import HeldTensors
from ignite_ipu.torch_names.modules import STATE_DICT_HOOKS, STATE_SAVING, all_modules


@runtime_checkable
class _HasImages(Protocol):
    """An engine that returns its state dictionary of a moment later, given the random state of the device."""

    def state_image(self, device_random_state: Optional[List[int]]) -> Callable[[], Mapping[str, Any]]: ...


@dataclasses.dataclass(frozen=True)
class RunImage:
    """A run's whole state between two iterations.

    Attributes:
        iteration: The engine's.
        snapshot: Weights, optimizer and random streams.
        places: The positions of entries of the model's state dictionary in the snapshot.
        entries: The model's state dictionary, with None for the entries that the snapshot has.
        states: The states of other objects, by their name in the file.
        state_of_trainer: Returns the trainer's state dictionary.
    """

    iteration: int
    snapshot: Snapshot
    places: Mapping[str, int]
    entries: Mapping[str, Any]
    states: Dict[str, Any]
    state_of_trainer: Callable[[], Mapping[str, Any]]

    def content(self, optimizer: Mapping[str, Any]) -> Dict[str, Any]:
        """Return the content of a file, with a state dictionary of the optimizer."""
        values, places = self.snapshot.weights, self.places
        model = ((name, values[places[name]] if name in places else each) for name, each in self.entries.items())
        trainer = {"trainer": self.state_of_trainer()}
        return {**trainer, **self.states, "model": OrderedDict(model), "optimizer": optimizer}


class RunImages:
    """Keeps the newest image of a run, of its model, optimizer and further objects by their name in the file."""

    def __init__(
        self, trainer: Engine, model: nn.Module, held: HeldTensors, link: Link, objects: Mapping[str, Any]
    ) -> None:
        self._trainer, self._link, self._objects = trainer, link, objects
        self._imaged = trainer if isinstance(trainer, _HasImages) else None
        self._entries = _Entries(model, held)
        self._writing = threading.Lock()
        self.newest: Optional[RunImage] = None

    def take(self, snapshot: Snapshot) -> None:
        """Make the current state the newest image."""
        trainer = self._trainer
        places, entries = self._entries.read()
        states = {name: copied(value.state_dict()) for name, value in self._objects.items()}
        if self._imaged is not None:
            of_trainer = self._imaged.state_image(snapshot.random_state)
        else:
            of_trainer = functools.partial(copied, copied(trainer.state_dict()))
        self.newest = RunImage(trainer.state.iteration, snapshot, places, entries, states, of_trainer)

    def write(self, folder: Path) -> Optional[Path]:
        """Write the newest image as `recovery_<iteration>.pt`; returns the file, None when there is no image.

        Any thread may call it. `CheckpointError` if it cannot be written.
        """
        with self._writing:
            image = self.newest
            if image is None:
                return None
            path = folder / f"recovery_{image.iteration}.pt"
            write_checkpoint(path, image.content(self._link.state_dict(image.snapshot.optimizer)))
            return path


class _Entries:
    """The entries of a model's state dictionary, those left out that a snapshot of its tensors has.

    PyTorch's own modules have the same entries as long as they have the same tensors.
    """

    def __init__(self, model: nn.Module, held: HeldTensors) -> None:
        self._model, self._held = model, held
        self._seen: Optional[int] = None
        self._hooks: List[Any] = []
        self._places: Dict[str, int] = {}
        self._entries: Dict[str, Any] = {}

    def read(self) -> Tuple[Mapping[str, int], Mapping[str, Any]]:
        """Return the positions of entries in a snapshot, and the state dictionary with None for these entries."""
        if self._seen != CHANGES.count or any(self._hooks):
            count, modules = CHANGES.count, all_modules(self._model)
            places = self._places = self._held.positions(self._model)
            # With `keep_vars` nothing reads the weights, which the snapshot has: a read is checked for a write.
            with torch.no_grad():
                state = self._model.state_dict(keep_vars=True)
                self._entries = {name: None if name in places else _detached(state[name]) for name in state}
            self._hooks = [getattr(module, STATE_DICT_HOOKS) for module in modules]
            lasts = self._entries.keys() <= places.keys() and all(map(_saves_tensors_alone, modules))
            self._seen = count if lasts else None
        return self._places, self._entries


def _saves_tensors_alone(module: nn.Module) -> bool:
    """Return whether the state dictionary of a module without hooks has entries for its tensors alone."""
    return all(getattr(type(module), name) is getattr(nn.Module, name) for name in STATE_SAVING)


def _detached(value: Any) -> Any:
    """Return a copy of an entry of a model's state dictionary."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
