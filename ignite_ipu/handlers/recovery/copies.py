"""Copies between the training program's IPUs and the host that are retried when they fail, whoever asks for them."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any, Callable, Iterator, Optional, TypeVar

from ignite_ipu.poptorch_types import Executor
from ignite_ipu.session.training import Trained

__all__ = ["GuardedCopies"]

_T = TypeVar("_T")
_COPYING = ("copyWeightsToHost", "copyWeightsToHostIfNeeded", "detachFromDevice", "destroy")


class GuardedCopies:
    """Retries the copies of a session's training.

    Args:
        retried: Returns the result of an action, called again after every fault that can be retried.
    """

    def __init__(self, trained: Trained, retried: Callable[[Callable[[], Any]], Any]) -> None:
        self._trained = trained
        self._retried = retried
        self._pass = False
        self._guarded: Callable[[], Optional[Executor]] = lambda: None

    def make(self, action: Callable[[], _T]) -> _T:
        """Return the result of a copy, retried if need be."""
        if self._pass:
            return action()

        def pass_on() -> _T:
            with self.let_pass():
                return action()

        result: _T = self._retried(pass_on)
        return result

    @contextlib.contextmanager
    def let_pass(self) -> Iterator[None]:
        """Let copies through: what makes them makes them good."""
        before, self._pass = self._pass, True
        try:
            yield
        finally:
            self._pass = before

    def guard(self, executor: Executor) -> None:
        """Guard the executor's own copies, too: reading a weight of a model in training calls them."""
        if executor is self._guarded():
            return
        for name in _COPYING:
            setattr(executor, name, functools.partial(self._make_by_name, weakref.ref(executor), name))
        self._guarded = weakref.ref(executor)

    def _make_by_name(self, executor: Callable[[], Any], name: str) -> Any:
        def action() -> Any:
            # A reset may have taken a new program.
            newest = self._trained.program.executor or executor()
            return getattr(type(newest), name)(newest)

        return self.make(action)
