"""Trace points on a timeline: `poptorch.profiling`.

PopTorch hands them to Graphcore's `libpvti`, which exists only in its SDK. Here they go to a file that Chrome
(chrome://tracing) and Perfetto open. They are recorded if the environment variable `PVTI_OPTIONS` holds JSON such as
`{"enable": "true", "directory": "profiles"}` when this module is imported. The file is then `profiles/poptorch-<process
id>.trace.json`, begun at the first trace point and finished when the process exits normally. Without `directory` it
lands in the working directory; with `"enable": "false"` nothing is recorded.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import threading
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, Optional, TextIO, TypeVar

_Object = TypeVar("_Object")


class EventRecorder:
    """Writes trace events to a file of this process in `directory`, in Chrome's trace-event format."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._reset()
        atexit.register(self.close)
        # A forked child writes a file of its own, and must not inherit buffered text, which it would write as well.
        os.register_at_fork(
            before=self._pause, after_in_parent=lambda: self._lock.release(), after_in_child=self._reset
        )

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._file: Optional[TextIO] = None

    def _pause(self) -> None:
        self._lock.acquire()
        if self._file is not None:
            self._file.flush()

    @property
    def path(self) -> str:
        """The file that this process writes."""
        return os.path.join(self._directory, f"poptorch-{os.getpid()}.trace.json")

    def record(self, channel: str, label: str, start_ns: int, stop_ns: int) -> None:
        """Add a span of time, given in nanoseconds of `time.perf_counter_ns`, to a channel."""
        event = {
            "name": label,
            "cat": channel,
            "ph": "X",
            "ts": start_ns / 1e3,
            "dur": (stop_ns - start_ns) / 1e3,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "args": {"channel": channel},
        }
        with self._lock:
            if self._file is None:
                os.makedirs(self._directory, exist_ok=True)
                self._file = open(self.path, "w", encoding="utf-8")  # noqa: SIM115 (closed at exit)
                self._file.write("[\n")
            else:
                self._file.write(",\n")
            json.dump(event, self._file)

    def close(self) -> None:
        """Finish the file; a later trace point begins it anew."""
        with self._lock:
            if self._file is not None:
                self._file.write("\n]\n")
                self._file.close()
                self._file = None


class Channel:
    """A row of trace points with a name on the timeline."""

    def __init__(self, name: str) -> None:
        self._name = name

    def instrument(self, obj: _Object, *methods: str) -> _Object:
        """Make every call of the named methods of `obj` a trace point; returns `obj`.

        Raises:
            AttributeError: `obj` has no such method; only a channel that is recorded looks.
        """
        if _RECORDER is not None:
            for method in methods:
                setattr(obj, method, self._traced(getattr(obj, method), method))
        return obj

    @property
    def is_recorded(self) -> bool:
        """True where trace points go anywhere."""
        return _RECORDER is not None

    def tracepoint(self, name: str) -> ContextManager[None]:
        """Return a context that is one trace point labelled `name`."""
        return contextlib.nullcontext() if _RECORDER is None else self._span(_RECORDER, name)

    @contextlib.contextmanager
    def _span(self, recorder: EventRecorder, label: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            recorder.record(self._name, label, start, time.perf_counter_ns())

    def _traced(self, method: Callable[..., Any], label: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(label):
                return method(*args, **kwargs)

        return call


def _recorder_from_environment() -> Optional[EventRecorder]:
    text = os.environ.get("PVTI_OPTIONS")
    if not text:
        return None
    try:
        settings: Dict[str, Any] = json.loads(text)
        enabled = str(settings.get("enable", "true")).lower() == "true"
        directory = str(settings.get("directory", "."))
    except (ValueError, AttributeError):
        raise ValueError(
            f'Environment variable PVTI_OPTIONS must be a JSON object such as {{"enable": "true", "directory": "d"}}, '
            f"and it is {text!r}."
        ) from None
    return EventRecorder(directory) if enabled else None


_RECORDER = _recorder_from_environment()
