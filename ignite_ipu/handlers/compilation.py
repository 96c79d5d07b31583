"""`CompilationProgress`: a progress bar for the compilation, which on an IPU can take longer than an epoch."""

from __future__ import annotations

from typing import Any, Optional

from ignite.engine import Engine
from tqdm.auto import tqdm

from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.session import IPUSession

__all__ = ["CompilationProgress"]

_FORMAT = "{desc}: {elapsed} {bar} {n_fmt}/{total_fmt}"


class CompilationProgress:
    """Shows that a program is being compiled, and for how long it was.

    Args:
        desc: Text before the bar.
        **tqdm_kwargs: Handed to tqdm, such as `file` and `leave`.
    """

    def __init__(self, desc: str = "Compiling for the IPU", **tqdm_kwargs: Any) -> None:
        self._desc = desc
        self._tqdm_kwargs = tqdm_kwargs
        self._bar: Optional[Any] = None

    def attach(self, engine: Engine) -> None:
        """Show the compilations of the engine's session, in the place of PopTorch's own bar.

        The engine is one of this library's. A program that is compiled already keeps PopTorch's bar.
        """
        session: IPUSession = engine.ipu  # type: ignore[attr-defined]
        for program in (session.training, *session.evaluations):
            if program is not None and program.executor is None:
                program.options.showCompilationProgressBar(False)
        engine.add_event_handler(IPUEvents.COMPILE_STARTED, self._start)
        engine.add_event_handler(IPUEvents.COMPILE_COMPLETED, self._complete)
        engine.add_event_handler(IPUEvents.RUN_FAILED, self._close)

    def _start(self) -> None:
        self._close()  # of a compilation that failed in another engine's run
        self._bar = tqdm(total=1, desc=self._desc, bar_format=_FORMAT, **self._tqdm_kwargs)

    def _complete(self) -> None:
        if self._bar is not None:
            self._bar.update()
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
