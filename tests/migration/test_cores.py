"""Many items are worked on by all cores, with the same results in the same order."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from ignite_ipu.migration.checker import on_all_cores

# Forks are made by processes without threads alone, which that of the tests may be or not, depending on earlier tests.
_PROGRAM = """
import os, signal
from ignite_ipu.migration.checker import on_all_cores

def square(number):
    return number**2, os.getpid()

def died(number):
    if number == 70:  # as a process does that finds no more memory
        os.kill(os.getpid(), signal.SIGKILL)

def refused(number):
    if number == 70:  # as a file's reader might
        raise PermissionError(f"cannot read {number}")

"""
needs_forks = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) == 1, reason="one core, or a system without forks"
)


def of_its_own(statement):
    """Return the exit code and the standard error of a process of its own."""
    ended = subprocess.run([sys.executable, "-c", _PROGRAM + statement], capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stderr


@needs_forks
def test_results_come_in_order_from_other_processes():
    assert of_its_own(
        "results = list(on_all_cores(square, range(100)))\n"
        "assert [value for value, _ in results] == [number**2 for number in range(100)]\n"
        "assert os.getpid() not in {process for _, process in results}"
    ) == (0, "")


def test_few_items_and_programs_with_threads_make_no_process():
    def here(number):
        return number**2, os.getpid()

    assert list(on_all_cores(here, range(3))) == [(number**2, os.getpid()) for number in range(3)]
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    assert {process for _, process in on_all_cores(here, range(100))} == {os.getpid()}
    ended.set()
    thread.join()


@needs_forks
def test_a_process_that_dies_is_no_hang():
    code, error = of_its_own("list(on_all_cores(died, range(100)))")
    assert code == 1 and "UserError" in error
    assert "died while they worked on 100 files" in error and "memory" in error


@needs_forks
def test_an_error_is_that_of_the_item():
    code, error = of_its_own("list(on_all_cores(refused, range(100)))")
    assert code == 1 and error.endswith("PermissionError: cannot read 70\n")
