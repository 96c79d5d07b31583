"""Python state that a traced forward reads or changes: values read are compiled in, and values written stay so.

While the user's code runs, the values that it names, and the states of Python's and numpy's generators, are compared
between one line and the next.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from types import CodeType, FrameType
from typing import Any, Callable, Dict, Hashable, Iterator, List, Optional, Set

from torch import nn

from ignite_ipu.capabilities.traced import REPLACED, STATE
from ignite_ipu.migration.findings import Severity
from ignite_ipu.migration.trial.notes import CodePlace, is_users, place_of
from ignite_ipu.migration.trial.survey import Survey
from ignite_ipu.program.forward.assigned_buffers import is_assigned
from ignite_ipu.program.forward.randomness import generator_states
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.torch_names.tensors import DisableTorchFunction


@contextlib.contextmanager
def watched_lines(model: nn.Module, survey: Survey) -> Iterator[None]:
    """Note the reads, changes and draws of the user's lines in functions that begin in the `with` block.

    Only what runs in a survey counts: the garbage collector may end a generator of any code at any time, also while
    PopTorch has put its own tensors in the places of parameters.
    """
    watch = _Watch(model, survey)
    before = sys.gettrace()
    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)


class _Watch:
    """A trace function that compares Python state before and after each line."""

    def __init__(self, model: nn.Module, survey: Survey) -> None:
        self._model, self._survey, self._notes = model, survey, survey.notes
        self._line: Optional[CodePlace] = None
        self._state: Optional[PythonState] = None
        self._values: List[Hashable] = []
        self._registered: Dict[str, int] = {}
        self._generators = generator_states()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Optional[Callable[..., Any]]:
        if not self._survey.runs or not is_users(frame.f_code.co_filename):
            return None
        with DisableTorchFunction():
            self._look()
        if event == "return":
            above = frame.f_back
            self._line = place_of(above) if above is not None and is_users(above.f_code.co_filename) else self._line
        else:
            self._line = place_of(frame)
            if event == "line":
                self._note_reads(frame)
        return self

    def _look(self) -> None:
        """Note the changes made by the line that ran last."""
        generators = generator_states()
        for name, now, before in zip(("random", "numpy.random"), generators, self._generators):
            if now != before:
                self._notes.add("python-randomness", self._line, STATE.reason("{where}", name))
        self._generators = generators
        for name in self._replaced():
            self._notes.add("rebound-buffer", self._line, REPLACED.reason("{where}", f"self.{name}"))
        for name in self._changed():
            self._notes.add("mutated-python-state", self._line, STATE.reason("{where}", name), about=name)

    def _replaced(self) -> List[str]:
        buffers = [(name, each) for name, each in self._model.named_buffers() if not self._is_assigned(name)]
        tensors = (*self._model.named_parameters(), *buffers)
        before, self._registered = self._registered, {name: id(tensor) for name, tensor in tensors}
        return [name for name, now in self._registered.items() if before.get(name, now) != now]

    def _is_assigned(self, name: str) -> bool:
        path, _, own = name.rpartition(".")
        return is_assigned(self._model.get_submodule(path), own)

    def _changed(self) -> List[str]:
        state, before = self._state, self._values
        if state is not None and state.complete:
            self._values = state.values()
            return state.changed(before) if before != self._values else []
        known = {} if state is None else dict(zip(state.names, before))
        new = self._state = PythonState(self._model)
        self._values = new.values()
        # At the first line there is nothing to compare with.
        found = zip(new.names, self._values) if state is not None else ()
        return [name for name, value in found if name not in known or known[name] != value]

    def _note_reads(self, frame: FrameType) -> None:
        """Note the numbers that the line which is about to run reads from a module."""
        code = frame.f_code
        module = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if not isinstance(module, nn.Module):
            return
        for name in sorted(_attributes_read(code).get(frame.f_lineno, ())):
            value = vars(module).get(name)
            if type(value) is float:
                text = f"{{where}} reads self.{name}, which is {value!r}; the program keeps that number"
                self._notes.add("captured-constant", self._line, text, Severity.NOTE, about=name)


@functools.lru_cache(maxsize=256)
def _attributes_read(code: CodeType) -> Dict[int, Set[str]]:
    starts, line = dict(dis.findlinestarts(code)), code.co_firstlineno
    found: Dict[int, Set[str]] = {}
    for each in dis.get_instructions(code):
        line = starts.get(each.offset) or line
        if each.opname == "LOAD_ATTR":
            found.setdefault(line, set()).add(str(each.argval))
    return found
