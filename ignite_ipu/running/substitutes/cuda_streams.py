"""Streams and events of `torch.cuda` in a script: the host does one thing after another, so they order nothing.

An event notes the host's time, and `elapsed_time` is the time between two on the host.
"""

from __future__ import annotations

import contextlib
import sys
import time
from types import FrameType
from typing import Any, Iterator, Optional, Tuple

import torch

from ignite_ipu.capabilities import gpu_capability
from ignite_ipu.running.patches import Substitutes

_NOTHING = gpu_capability("Stream").sentence
_TIME = gpu_capability("Event").sentence


class HostStream:
    """A stream in which everything is done when it is asked for."""

    cuda_stream = stream_id = priority = 0
    device = torch.device("cpu")

    def record_event(self, event: Optional[HostEvent] = None) -> HostEvent:
        found = HostEvent() if event is None else event
        found.record(self)
        return found

    def wait_event(self, event: Any) -> None:
        """Return at once, as the next three do."""

    def wait_stream(self, stream: Any) -> None:
        """Return at once."""

    def synchronize(self) -> None:
        """Return at once."""

    def query(self) -> bool:
        return True

    def __enter__(self) -> HostStream:
        return self

    def __exit__(self, *raised: Any) -> None:
        """Go on with the next thing."""


class HostEvent:
    """An event that notes the time at which it is recorded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._time: Optional[float] = None

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Return the milliseconds between the records of this event and another one."""
        if self._time is None or end_event._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time - self._time) * 1000

    def wait(self, stream: Any = None) -> None:
        """Return at once, as the next does."""

    def synchronize(self) -> None:
        """Return at once."""

    def query(self) -> bool:
        return True


def substitute_streams(substitutes: Substitutes) -> None:
    """Give the script streams and events of the host."""
    stream = HostStream()

    def current(line: Any, original: Any, *args: Any, **kwargs: Any) -> HostStream:
        substitutes.note(f"torch.cuda.{original.__name__}()", _NOTHING, line)
        return stream

    def set_stream(line: Any, original: Any, *args: Any, **kwargs: Any) -> None:
        substitutes.note("torch.cuda.set_stream()", _NOTHING, line)

    def entered(line: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        substitutes.note("torch.cuda.stream()", _NOTHING, line)
        return _nothing()

    def record_stream(frame: FrameType, original: Any, tensor: torch.Tensor, used: Any) -> None:
        if not isinstance(used, HostStream):
            original(tensor, used)

    for name, function in (
        ("current_stream", current),
        ("default_stream", current),
        ("set_stream", set_stream),
        ("stream", entered),
    ):
        substitutes.own_calls(torch.cuda, name, function, packages=False)
    substitutes.calls(torch.Tensor, "record_stream", record_stream)
    for name, host, became in (("Stream", HostStream, _NOTHING), ("Event", HostEvent, _TIME)):
        original = getattr(torch.cuda, name)
        kind = _of_scripts(name, original, host, became, substitutes)
        for module in (torch.cuda, torch.cuda.streams):
            substitutes.set(module, name, kind)


def _of_scripts(name: str, original: Any, host: Any, became: str, substitutes: Substitutes) -> Any:
    """Return the substitute of a class of `torch.cuda`: called by the script, it makes an object of the host."""

    class OfScripts(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if substitutes.maps(sys._getframe(1), f"torch.cuda.{name}()", became):
                return host() if host is HostStream else host(*args, **kwargs)
            return original(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, (host, original))

        def __getattr__(cls, attribute: str) -> Any:
            return getattr(original, attribute)

    bases: Tuple[type, ...] = ()
    return OfScripts(name, bases, {"__module__": "torch.cuda"})


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield
