"""`RunStarts`: the points at which the runs of an engine start."""

from __future__ import annotations

import enum
import inspect
from typing import Any, Optional, Set

from ignite.engine import Engine, State

# Not all versions of Ignite take max_iters, or the later arguments in the same order.
_RUN = inspect.signature(Engine.run)


class Start(enum.Enum):
    """Starting point of a run."""

    OWN = "this engine's own position, or none"
    LOADED = "a position that was loaded"
    LOADED_END = "the end of a run that was loaded"
    REFUSED = "a position that was loaded, with arguments that Ignite refuses: an end that lies before it, for example"


class RunStarts:
    """Finds the starting point of each run of an engine, whose state may have been loaded.

    Attributes:
        loaded: Whether a state was loaded since the last run.
    """

    def __init__(self) -> None:
        self.loaded = False
        self._ends: Set[int] = set()

    def note_end(self, iteration: int) -> None:
        """Note an iteration that a run of this engine has ended with, which is no end of a loaded run."""
        self._ends.add(iteration)

    def start(self, engine: Engine, *args: Any, **kwargs: Any) -> Start:
        """Return the starting point of a run with these arguments, of which the data are left out."""
        if not self.loaded:
            return Start.OWN
        try:
            given = _RUN.bind(engine, None, *args, **kwargs).arguments
        except TypeError:
            return Start.REFUSED
        state, limits = engine.state, (given.get("max_epochs"), given.get("max_iters"))
        if _is_past(state, *limits):
            return Start.REFUSED
        reached = _has_reached(state, *limits)
        anew = state.max_epochs is None and getattr(state, "max_iters", None) is None
        if anew or (reached and state.iteration in self._ends):
            return Start.OWN
        return Start.LOADED_END if reached else Start.LOADED


def _has_reached(state: State, max_epochs: Optional[int], max_iters: Optional[int]) -> bool:
    epochs = max_epochs if max_epochs is not None else state.max_epochs
    iterations = max_iters if max_iters is not None else getattr(state, "max_iters", None)
    if iterations is not None:
        return bool(state.iteration >= iterations)
    return bool(epochs and state.epoch_length and state.iteration >= epochs * state.epoch_length)


def _is_past(state: State, max_epochs: Optional[int], max_iters: Optional[int]) -> bool:
    """Return whether Ignite refuses to shorten the run that was loaded so far."""
    pairs = (
        (max_epochs, state.max_epochs, state.epoch),
        (max_iters, getattr(state, "max_iters", None), state.iteration),
    )
    return any(None not in (most, before) and most < now for most, before, now in pairs)  # type: ignore[operator]
