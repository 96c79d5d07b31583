"""Replicas of one program that run together: at each exchange all of them meet.

The replicas of a process take turns, each in a thread of its own, so that every run computes the same. A replica runs
until it comes to an exchange or to its end, and then the next one runs.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, TypeVar

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.popdist.communication import Communicator

_Result = TypeVar("_Result")
Combine = Callable[["Replicas", List[Any]], Any]


class Replicas:
    """The replicas of one process, and its connection to the replicas of others.

    Attributes:
        local: Number of replicas of this process.
        offset: Index of the first one among all.
        total: Number of replicas of all processes.
    """

    def __init__(self, local: int, process: int, processes: Optional[Communicator]) -> None:
        self.local = local
        self.offset = process * local
        self.total = local * (1 if processes is None else processes.size)
        self._processes = processes

    def run(self, steps: Sequence[Callable[[], _Result]]) -> List[_Result]:
        """Run a function for each replica, and return the results.

        Raises:
            Error: Replicas came to different numbers of exchanges.
        """
        turns = [_Turns(self, replica, step) for replica, step in enumerate(steps)]
        answer: Any = None
        try:
            while True:
                stops = [turn.resume(answer) for turn in turns]
                exchanges = [stop for stop in stops if isinstance(stop, _Exchange)]
                if not exchanges:
                    return [turn.result for turn in turns]
                if len(exchanges) < len(stops):
                    raise backend_error(
                        "Replicas came to different collective operators: on IPUs they would wait for each other for "
                        "ever. Keep collective operators out of branches that replicas take differently."
                    )
                answer = exchanges[0].combine(self, [stop.value for stop in exchanges])
        finally:
            for turn in turns:
                turn.cancel()

    def gather(self, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return the tensors of all replicas from those of this process."""
        if self._processes is None or self._processes.size == 1:
            return list(tensors)
        everywhere = self._processes.all_gather(torch.stack([tensor.detach() for tensor in tensors]))
        return [tensor for own in everywhere for tensor in own.unbind()]


class _Exchange(NamedTuple):
    combine: Combine
    value: Any


class _Cancelled(BaseException):
    """Ends a replica that waits in an exchange of which nothing comes."""


class _Turns:
    """One replica's thread, which runs only between `resume` and its return."""

    result: Any = None

    def __init__(self, replicas: Replicas, replica: int, step: Callable[[], Any]) -> None:
        self.replicas = replicas
        self.replica = replica
        self._step = step
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._stop: Any = None
        self._answer: Any = None
        self._cancelled = self._ended = False
        self._error: Optional[BaseException] = None
        # A new thread has PyTorch's defaults.
        self._with_gradients = torch.is_grad_enabled()
        self._thread = threading.Thread(target=self._main, name=f"replica {replica}", daemon=True)
        self._thread.start()

    def resume(self, answer: Any) -> Any:
        """Let the replica run on with the answer to its exchange, and return its next exchange, or None at its end."""
        self._answer, self._stop = answer, None
        self._go.release()
        self._stopped.acquire()
        if self._error is not None:
            raise self._error
        return self._stop

    def exchange(self, combine: Combine, value: Any) -> Any:
        """Stop at an exchange, from within the replica's thread, and return the answer."""
        self._stop = _Exchange(combine, value)
        self._stopped.release()
        self._go.acquire()
        if self._cancelled:
            raise _Cancelled
        return self._answer

    def cancel(self) -> None:
        """End the replica if it has not ended."""
        if not self._ended:
            self._cancelled = True
            self._go.release()
        self._thread.join()

    def _main(self) -> None:
        self._go.acquire()
        with contextlib.suppress(_Cancelled), _running(self), torch.set_grad_enabled(self._with_gradients):
            try:
                if not self._cancelled:
                    self.result = self._step()
            except _Cancelled:
                raise
            except BaseException as error:
                self._error = error
        self._ended = True
        self._stopped.release()


_current = threading.local()


@contextlib.contextmanager
def _running(turns: _Turns) -> Iterator[None]:
    _current.turns = turns
    yield


def exchange(combine: Combine, value: Any) -> Any:
    """Return the result of `combine` for the values of this process's replicas; all of them must come here.

    It is called once, with the replicas and their values.
    """
    return _turns().exchange(combine, value)


def this_replica() -> int:
    """Return the index of the running replica in its process."""
    return _turns().replica


def _turns() -> _Turns:
    found: _Turns = _current.turns
    return found
