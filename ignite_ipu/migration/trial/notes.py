"""Notes of a trace, each at a place in the user's code, before they are findings in a file."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, List, NamedTuple, Optional, Set, Tuple

from ignite_ipu.migration.findings import Severity
from ignite_ipu.program.user_code import OURS, is_users_file


class CodePlace(NamedTuple):
    """A line, from 1, of the file at an absolute path, and the method or function that it is in: `Net.forward`."""

    path: str
    line: int
    where: str


class Note(NamedTuple):
    """One finding of a trace: the rule that it breaks, and the problem.

    There is no place when no line of the user's is to blame, and a severity when it differs from the rule's own.
    """

    rule: str
    place: Optional[CodePlace]
    message: str
    severity: Optional[Severity] = None


@dataclass
class Notes:
    """Collects notes, one for each rule and line.

    `broken` has the rules of all findings worse than a note, known ones included.
    """

    found: List[Note] = field(default_factory=list)
    broken: List[str] = field(default_factory=list)
    _known: Set[Tuple[object, ...]] = field(default_factory=set)

    def add(
        self, rule: str, place: Optional[CodePlace], message: str, severity: Optional[Severity] = None, about: str = ""
    ) -> None:
        """Note something, unless the line is known to break the rule; `about` separates several findings of one line.

        `{where}` in the message stands for the function that the place is in.
        """
        if severity is not Severity.NOTE:
            self.broken.append(rule)
        message = message.replace("{where}", "the model" if place is None else place.where)
        line = ("", 0) if place is None else (place.path, place.line)
        key = (rule, *line, about or (message if place is None else ""))
        if key not in self._known:
            self._known.add(key)
            self.found.append(Note(rule, place, message, severity))

    def has(self, rule: str, place: Optional[CodePlace]) -> bool:
        return any(note.rule == rule and note.place == place for note in self.found)


def current_place() -> Optional[CodePlace]:
    """Return the innermost line that runs now and is the user's; None when only libraries run."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _TRIAL:
        if is_users(frame.f_code.co_filename):
            return place_of(frame)
        frame = frame.f_back
    return None


# Further out is who called this package: a script or a test.
_TRIAL = os.path.join(os.path.dirname(__file__), "trial.py")


def raised_at(error: BaseException) -> Optional[CodePlace]:
    """Return the innermost line of the user's that an exception came through."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if is_users(frame.f_code.co_filename):
            found = place_of(frame, line)
    return found


def library_line(error: BaseException) -> str:
    """Return the innermost line outside torch and this package, as a message names it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(OURS)]
    return f"{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}"


def definition_of(function: Any) -> Optional[CodePlace]:
    """Return where a function or method is defined; None when that is no code of the user's."""
    code: Optional[CodeType] = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return None
    return _place(code, code.co_firstlineno, getattr(function, "__self__", None))


def place_of(frame: FrameType, line: Optional[int] = None) -> CodePlace:
    """Return a frame's place."""
    code = frame.f_code
    has_self = code.co_argcount and code.co_varnames[0] == "self"
    return _place(code, frame.f_lineno if line is None else line, frame.f_locals.get("self") if has_self else None)


def _place(code: CodeType, line: int, owner: Any) -> CodePlace:
    where = code.co_name if owner is None else f"{type(owner).__name__}.{code.co_name}"
    return CodePlace(os.path.abspath(code.co_filename), line, where)


def is_users(file: str) -> bool:
    """Return whether code is the user's own and has a file to be found in."""
    return not file.startswith("<") and is_users_file(file)
