"""Work over many items on all cores."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Iterator, Sequence, TypeVar

from ignite_ipu.errors import UserError

_FEW = 64
_TAKEN_AT_ONCE = 8

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_all_cores(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield what a function makes of each item, in their order; raises `UserError` when a process dies.

    Many items are shared among forks of this process, one a core, if it has no other threads; results are pickled then.
    Few are worked on here, and all of them where processes are not made by forks.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    if cores == 1 or len(items) < _FEW or threading.active_count() > 1:
        yield from map(function, items)
        return
    forks = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(cores, forks, _begin, (function,)) as pool:
        try:
            yield from pool.map(_call, items, chunksize=_TAKEN_AT_ONCE)
        except BrokenProcessPool:
            raise UserError(
                f"one of {cores} processes died while they worked on {len(items)} files, as it does when memory "
                "runs out: name fewer files or folders at a time"
            ) from None


_function: Any = None  # in a fork, what it computes: forks need no pickle of it


def _begin(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    # Ctrl-C is for the process that asked, which lets the others finish what they have in hand.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(item: Any) -> Any:
    return _function(item)
