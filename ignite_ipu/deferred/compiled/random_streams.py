"""The random states that programs of a loop go on from."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Protocol, Sequence

import torch

from ignite_ipu.deferred.graph.owners import held_tensors
from ignite_ipu.session.random_streams import continue_stream, read_stream
from ignite_ipu.session.training import Trained

__all__ = ["OwnStream", "RandomStreams"]


class RandomStreams:
    """Random states by the parameters that their programs train.

    Programs come and go: with the first update models become one loop, and optimizers get programs of their own. The
    parameters stay. So a program that has yet to run goes on from the state of the first of its parameters with one.
    """

    def __init__(self) -> None:
        self._states: Dict[int, List[int]] = {}

    def of(self, ids: Iterable[int]) -> Optional[List[int]]:
        """Return the state for a program that trains parameters of these ids, None if there is none."""
        return next((self._states[each] for each in ids if each in self._states), None)

    def note(self, ids: Iterable[int], state: Optional[List[int]]) -> None:
        """Keep the state of a program that trains parameters of these ids; with None a program starts anew."""
        for each in ids:
            if state is None:
                self._states.pop(each, None)
            else:
                self._states[each] = state

    def merge(self, other: RandomStreams) -> None:
        self._states.update(other._states)


class _Programs(Protocol):
    """The programs that draw from a stream: of an optimizer, or of all parameters if there is none."""

    optimizer: Optional[torch.optim.Optimizer]
    trained: Optional[Trained]
    modes: Any


class OwnStream:
    """The random stream of some programs, which is on the device once the optimizer has been converted."""

    def __init__(self, programs: _Programs, streams: RandomStreams) -> None:
        self._programs, self._streams = programs, streams
        self._state: Optional[List[int]] = None

    def read(self) -> Optional[List[int]]:
        """Return the random state, None if there is none yet."""
        if self._programs.trained is not None:
            return read_stream(self._programs.trained.program)
        return self._streams.of(self._trainable()) if self._state is None else self._state

    def go_on_from(self, state: List[int]) -> None:
        """Continue from a random state with the next update."""
        if self._programs.trained is None:
            self._state = state
            self._streams.note(self._trainable(), state)
        else:
            continue_stream(self._programs.trained.program, state)

    def keep(self) -> None:
        """Keep the random state of programs that are given back."""
        self._state = self.read()
        self._streams.note(self._trainable(), self._state)

    def follow(self, state: Optional[List[int]]) -> None:
        """Go on from a random state that the loop's streams have for the parameters, if the optimizer is converted.

        Otherwise the streams are looked up at the first update: it may train other parameters by then.
        """
        self._state = None
        if self._programs.trained is not None and state is not None:
            continue_stream(self._programs.trained.program, state)

    def may_serve(self, ids: Sequence[int]) -> bool:
        """Return whether the programs may train some parameters, by their ids."""
        return not set(ids).isdisjoint(self._trainable())

    def _trainable(self) -> List[int]:
        optimizer = self._programs.optimizer
        return list(map(id, self._programs.modes.parameters if optimizer is None else held_tensors(optimizer)))
