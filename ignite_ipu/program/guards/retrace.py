"""Second traces: what the host computes when it calls a model again, compared with when its program was compiled.

Whatever a forward reads from Python, by whichever way, shows in the operators that it calls as soon as it matters.
"""

from __future__ import annotations

import random
import warnings
from hashlib import sha256
from typing import Any, Callable, List, Optional, Sequence

import numpy as np
import torch

from ignite_ipu.errors import BatchError, CaptureError
from ignite_ipu.program.forward.randomness import SEED, draws_put_back, moved, name_of_iterator, state_of
from ignite_ipu.program.forward.recorder import DRAWN, Operation, Recorder
from ignite_ipu.program.guards.python_state import PythonState

__all__ = ["MOST_CALLS", "Retrace"]

MOST_CALLS = 256
"""Calls of a program after which its module is traced again."""

_MOST_TRACES = 3


class Retrace:
    """Finds out whether a call on the host still computes what it computed when a program was compiled.

    Args:
        call: Calls the model in the `with` block of what it is given, which notes its operators.
        state_of: Finds the values that its code names again, when they are elsewhere.
        drawn_from: Random generators and iterators among its arguments.

    Attributes:
        result: What the last call returned.
        calls: Calls of the program since the last look.
        is_due: True if there is to be a look before the next call.
    """

    def __init__(
        self, call: Callable[[Recorder], Any], state_of: Callable[[], PythonState], drawn_from: Sequence[Any] = ()
    ) -> None:
        self.result: Any = None
        self.calls = self._looks = 0
        self.is_due = False
        self._call, self._state_of, self._drawn_from = call, state_of, drawn_from
        # None where nobody can tell.
        self._operations: Optional[List[Operation]] = None

    def note_call(self) -> None:
        """Count a call of the program."""
        self.calls += 1
        self.is_due |= self.calls >= MOST_CALLS

    @property
    def is_worth_it(self) -> bool:
        """True if there were enough calls for a look that others ask for, however often: looks become rarer."""
        return self.calls > min(self._looks, MOST_CALLS)

    def begin(self, state: PythonState, once: bool = False) -> List[str]:
        """Note what is computed; returns the names of what every call changes or finds changed.

        Args:
            state: The values that its code names, found at this moment.
            once: True if it is known that there is nothing of that kind.
        """
        before: List[Operation] = []
        with draws_put_back():
            # What the first call sets up, such as a cache, stays as it is in the second.
            for number in range(_MOST_TRACES):
                state = state if state.complete else self._state_of()
                drawn_from = [random, np.random, *state.iterators, *self._drawn_from]
                values, places = state.values(), list(map(state_of, drawn_from))
                if number:
                    torch.manual_seed(SEED)
                now = self._record().operations
                changed = state.changed(values) or ([] if state.complete else ["new ones"])
                changed += moved(drawn_from, places)
                if number and torch.initial_seed() != SEED:
                    changed.append("the seed of torch: a device draws from a stream of its own")
                if once or (number and not changed and now == before):
                    self._operations = now
                    return []
                if number and changed:
                    return changed
                before, last = now, before
            return self._unnamed(last, now, drawn_from[2:])

    def _unnamed(self, before: List[Operation], now: List[Operation], drawn_from: Sequence[Any]) -> List[str]:
        """Return what every call changes, as far as the operators tell."""
        if any(DRAWN in str(new) for old, new in zip(before, now) if old != new):
            return ["the state of a torch.Generator: draw without generator="]
        what = "what it computes from the time or from random bytes, or from what no code names: "
        return list(map(name_of_iterator, drawn_from)) or [what + self._difference(before, now)]

    def fingerprint(self) -> Optional[str]:
        """Return what stands for the operators in every process, None where they may be others in each."""
        text = repr(self._operations)
        return (
            None if self._operations is None or DRAWN in text or " at 0x" in text else sha256(text.encode()).hexdigest()
        )

    def again(self) -> str:
        """Return in words what is computed otherwise now; empty where nothing is."""
        self.calls, self.is_due = 0, False
        self._looks += 1
        if self._operations is None:
            return ""
        with draws_put_back():
            try:
                for _ in range(_MOST_TRACES - 1):
                    operations = self._record().operations
                    if operations == self._operations:
                        return ""
                return self._difference(self._operations, operations)
            except (BatchError, CaptureError):
                return ""  # an object among the arguments is another one by now
            except Exception as error:
                return f"it raises {type(error).__name__}: {error}"

    def _record(self, watched: int = -1) -> Recorder:
        recorder = Recorder(watched)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first call gives them
            self.result = self._call(recorder)
        return recorder

    def _difference(self, before: List[Operation], now: List[Operation]) -> str:
        """Return where two calls differ, and what they have there."""
        pairs = enumerate(zip(before, now))
        number = next((number for number, (old, new) in pairs if old != new), min(len(before), len(now)))
        line = self._record(min(number, len(now) - 1)).line
        (old, *was), (new, *given) = [each[number] if number < len(each) else ("nothing",) for each in (before, now)]
        if old is not new:
            return f"{new} at {line}, where it was {old}"
        return f"{new} at {line} has {given}, and had {was}"
