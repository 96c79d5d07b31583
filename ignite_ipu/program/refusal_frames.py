"""Tracebacks of refusals: the user's own frames, without those of this library, PyTorch and Ignite between them.

The frames are cut where the user's code enters this library: at the public functions and methods that `brief_refusals`
decorates. `IGNITE_IPU_DEBUG=1` shows all frames, in terminals and notebooks alike.
"""

from __future__ import annotations

import functools
import os
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any, Callable, List, Optional, Set, TypeVar, cast

from ignite_ipu.program.user_code import is_users_file

DEBUG = "IGNITE_IPU_DEBUG"
"""Environment variable: 1 shows all frames of a refusal."""

_NOTE = f"(frames of libraries are left out; {DEBUG}=1 shows them)"
_RAISED_BY = ("ignite_ipu.", "poptorch")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_OBSERVERS: List[Callable[[Exception], None]] = []


class _Displays:
    """Displays that leave out frames by themselves, for which errors keep all of theirs."""

    count = 0


def debugging() -> bool:
    """Return whether all frames are shown."""
    return os.environ.get(DEBUG, "").strip() not in ("", "0")


def keep_frames(kept: bool) -> None:
    """Let errors keep their frames, for a display that leaves some out and shows all on demand; or no longer."""
    _Displays.count += 1 if kept else -1


def observe_refusals(observer: Callable[[Exception], None]) -> Callable[[], None]:
    """Call something with each error of this library and of PopTorch that reaches the user's code, until the result."""
    _OBSERVERS.append(observer)
    return functools.partial(_OBSERVERS.remove, observer)


def brief_refusals(function: _Function) -> _Function:
    """Decorate a function that users call: errors of this library and of PopTorch leave it with their frames only."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not type(error).__module__.startswith(_RAISED_BY):
                raise
            if _OBSERVERS and not _is_called_by(sys._getframe().f_code):
                for observer in _OBSERVERS:
                    observer(error)
            if debugging() or _Displays.count:
                raise
            raise shortened(error) from error.__cause__

    return cast(_Function, call)


def _is_called_by(code: CodeType) -> bool:
    """Return whether a decorated function has called the running one: it may handle the error, as a trace does."""
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def shortened(error: Exception) -> Exception:
    """Return an error without the frames of libraries, in its causes, too."""
    seen: Set[int] = set()
    each: Optional[BaseException] = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = _users_part(each.__traceback__)
        if each.__cause__ is None:
            # The exception that was being handled is internal to this library.
            each.__suppress_context__ = True
        each = each.__cause__
    if hasattr(error, "add_note") and _NOTE not in getattr(error, "__notes__", ()):  # since Python 3.11
        error.add_note(_NOTE)
    return error


def _users_part(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    frames: List[TracebackType] = []
    while trace is not None:
        if is_users_file(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    for each in reversed(frames):
        trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace
