"""Draws from Python's and numpy's generators in a forward, found by what they do to the generators' states."""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any, Callable, Iterator, Optional

from ignite_ipu.migration.trial.notes import Notes
from ignite_ipu.migration.trial.places import Place, is_users, place_of
from ignite_ipu.program.forward.randomness import generator_states


@contextlib.contextmanager
def watched_generators(notes: Notes) -> Iterator[None]:
    """Note the lines of the user's that draw in the `with` block; functions that begin in it are watched."""
    watch = _Watch(notes)
    before = sys.gettrace()
    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)
        watch.look()


class _Watch:
    """A trace function that compares the generators' states between one line and the next."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._line: Optional[Place] = None
        self._python, self._numpy = generator_states()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Optional[Callable[..., Any]]:
        if not is_users(frame.f_code.co_filename):
            return None
        self.look()
        if event == "return":
            above = frame.f_back
            self._line = place_of(above) if above is not None and is_users(above.f_code.co_filename) else self._line
        else:
            self._line = place_of(frame)
        return self

    def look(self) -> None:
        """Note the line that ran last if a generator's state has changed."""
        python, numpy_ = generator_states()
        for name, changed in (("random", python != self._python), ("numpy.random", numpy_ != self._numpy)):
            if changed:
                text = f"{{where}} draws from {name}; the number drawn while tracing is used for ever"
                self._notes.add("python-randomness", self._line, text)
        self._python, self._numpy = python, numpy_
