"""`CallGuard`: who makes the device calls of a session in its place."""

from __future__ import annotations

from typing import Any, Callable, Protocol, Sequence

from ignite_ipu.session.program import Program

__all__ = ["CallGuard"]


class CallGuard(Protocol):
    """Makes device calls, and makes good the ones that fail."""

    def train(self, leaves: Sequence[Any], batch: Any) -> Any:
        """Return what the training program returns for one batch, after `session.prepare_call(leaves, batch)`."""

    def evaluate(self, program: Program, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, which calls an inference program."""

    def forget(self) -> None:
        """Note that the host has set something that the device will take over, such as a random state."""

    def end(self) -> None:
        """Note that the training, whose calls it makes, has ended."""
