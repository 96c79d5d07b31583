"""Refusals in terminals and notebooks: the message and the program's own frames, the other frames on demand."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType
from typing import Any, Callable, List, Optional, Type

from ignite_ipu.errors import IPUError, RunError
from ignite_ipu.program.refusal_frames import DEBUG, debugging, keep_frames
from ignite_ipu.program.user_code import is_users_file

_ON_DEMAND = f"(frames of libraries are left out: ignite_ipu.auto.traceback() or {DEBUG}=1 shows them)"


def shown(error: BaseException) -> str:
    """Return a traceback with the program's own frames; with all frames if `IGNITE_IPU_DEBUG` is set."""
    if debugging():
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(frame.filename)]
    head = ["Traceback (most recent call last):\n", *traceback.format_list(frames)] if frames else []
    lines = [*head, *traceback.format_exception_only(type(error), error), _ON_DEMAND + "\n"]
    return "".join(lines)


class RefusalDisplay:
    """Shows this library's errors short where Python and IPython would print all frames, until `close`.

    Args:
        refusal_of: Returns the refusal that an error stands for, or the error.
    """

    def __init__(self, refusal_of: Callable[[BaseException], BaseException]) -> None:
        self._refusal_of = refusal_of
        self._last: Optional[BaseException] = None
        keep_frames(True)
        self._before = sys.excepthook
        sys.excepthook = self._show
        shell = sys.modules.get("IPython")
        self._shell: Any = None if shell is None else shell.get_ipython()
        if self._shell is not None:
            self._shell.set_custom_exc((Exception,), self._show_in_cell)

    def close(self, refusals: List[RunError]) -> None:
        """Show errors as before; print refusals that the program has caught without a word."""
        keep_frames(False)
        if sys.excepthook == self._show:
            sys.excepthook = self._before
        if self._shell is not None:
            self._shell.set_custom_exc((), None)
        if refusals and self._last is None:
            print(
                f"ignite-ipu: error: the program went on after this refusal, so its results are not those of IPUs: "
                f"{refusals[0]}",
                file=sys.stderr,
            )

    def print_last(self) -> None:
        """Print the last refusal with all its frames."""
        if self._last is not None:
            traceback.print_exception(type(self._last), self._last, self._last.__traceback__)

    def _show(self, kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        refusal = self._refusal_of(error)
        if not isinstance(refusal, IPUError):
            self._before(kind, error, trace)
            return
        self._last = error
        print(shown(refusal.with_traceback(error.__traceback__)), file=sys.stderr, end="")

    def _show_in_cell(self, shell: Any, kind: Any, error: BaseException, trace: Any, tb_offset: Any = None) -> Any:
        refusal = self._refusal_of(error)
        if not isinstance(refusal, IPUError):
            return shell.InteractiveTB.structured_traceback(kind, error, trace, tb_offset=tb_offset)
        self._last = error
        lines = shown(refusal.with_traceback(error.__traceback__)).splitlines()
        shell._showtraceback(kind, refusal, lines)
        return lines
