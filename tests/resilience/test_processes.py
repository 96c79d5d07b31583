"""Programs that are killed leave no process, shared memory or file; all kinds of them: `python -m tests.resilience`."""

from __future__ import annotations

import signal

from tests.resilience.processes import kill_when_ready, launched, loading


def test_all_processes_end_with_a_killed_program():
    """Those of asynchronous and synchronous loaders, of nested ones, and those that a server has forked."""
    ends = {"fork server": signal.SIGTERM, "nested": signal.SIGKILL, "synchronous": signal.SIGKILL}
    programs = {kind: loading(kind) for kind in ends}
    for kind, program in programs.items():
        kill_when_ready(program, ends[kind])


def test_all_processes_end_with_a_killed_data_worker():
    """Even if its accessor is not asked for an item; and the rest with the program."""
    kill_when_ready(loading("nested"), signal.SIGKILL, victim="worker")


def test_a_launched_job_ends_with_its_launcher():
    """All instances, and the processes that they have started."""
    kill_when_ready(launched("fork"), signal.SIGKILL, ready=2)
