"""Copies between the training program's IPUs and the host that are made good when they fail, whoever asks for them."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional

if TYPE_CHECKING:
    from ignite_ipu.session.session import IPUSession

__all__ = ["GuardedCopies"]

_COPYING = ("copyWeightsToHost", "copyWeightsToHostIfNeeded", "detachFromDevice", "destroy")


class GuardedCopies:
    """Has the copies of a session's training made good.

    Args:
        session: What is trained.
        make_good: Returns what an action returns, called again after every fault that can be made good.
    """

    def __init__(self, session: IPUSession, make_good: Callable[[Callable[[], Any]], Any]) -> None:
        self._session = session
        self._make_good = make_good
        self._pass = False
        self._guarded: Callable[[], Any] = _nothing

    def attach(self) -> None:
        """Guard the copies that the session's training program and its optimizer's link ask for."""
        training, link = self._session.training, self._session.link
        assert training is not None and link is not None
        training.copying = self.make
        # The link outlives the session, until the session's end tells it: it must not keep the session alive.
        link.copying = functools.partial(_make_while_there_is, weakref.WeakMethod(self.make))

    def make(self, action: Callable[[], Any]) -> Any:
        """Return what a copy returns, made again if need be."""
        if self._pass:
            return action()

        def pass_on() -> Any:
            with self.let_pass():
                return action()

        return self._make_good(pass_on)

    @contextlib.contextmanager
    def let_pass(self) -> Iterator[None]:
        """Let copies through: what makes them makes them good."""
        before, self._pass = self._pass, True
        try:
            yield
        finally:
            self._pass = before

    def guard(self, executor: Any) -> None:
        """Guard the executor's own copies, too: reading a weight of a model in training calls them."""
        if executor is self._guarded():
            return
        for name in _COPYING:
            setattr(executor, name, functools.partial(self._make_by_name, weakref.ref(executor), name))
        self._guarded = weakref.ref(executor)

    def _make_by_name(self, executor: Callable[[], Any], name: str) -> Any:
        def action() -> Any:
            # A reset may have taken a new program.
            program = self._session.training
            newest = executor() if program is None or program.executor is None else program.executor
            return getattr(type(newest), name)(newest)

        return self.make(action)


def _nothing() -> None:
    return None


def _make_while_there_is(
    make: Callable[[], Optional[Callable[[Callable[[], Any]], Any]]], action: Callable[[], Any]
) -> Any:
    """Make a copy by a method, while its object lives."""
    method = make()
    return action() if method is None else method(action)
