"""Many items are worked on by all cores, with the same results in the same order."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from ignite_ipu.cli.cores import on_all_cores
from ignite_ipu.errors import UserError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1, reason="one core, or a system without forks"
)


def square(number):
    """Return the square, and who computed it."""
    return number**2, os.getpid()


def died(number):
    """Die as a process does that finds no more memory."""
    if number == 70:
        os.kill(os.getpid(), signal.SIGKILL)


def refused(number):
    """Raise what a file's reader might."""
    if number == 70:
        raise PermissionError(f"cannot read {number}")


def test_results_come_in_order_from_other_processes():
    results = list(on_all_cores(square, range(100)))
    assert [value for value, _ in results] == [number**2 for number in range(100)]
    assert os.getpid() not in {process for _, process in results}


def test_few_items_and_programs_with_threads_make_no_process():
    assert list(on_all_cores(square, range(3))) == [(number**2, os.getpid()) for number in range(3)]
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    assert {process for _, process in on_all_cores(square, range(100))} == {os.getpid()}
    ended.set()
    thread.join()


def test_a_process_that_dies_is_no_hang():
    with pytest.raises(UserError, match=r"died while they worked on 100 files.*memory"):
        list(on_all_cores(died, range(100)))


def test_an_error_is_that_of_the_item():
    with pytest.raises(PermissionError, match="cannot read 70"):
        list(on_all_cores(refused, range(100)))
