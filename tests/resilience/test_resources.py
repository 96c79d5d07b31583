"""Nothing is left behind: by lives of models, by exceptions, by fights over IPUs."""

from __future__ import annotations

import time

import pytest
import torch
from ignite.engine import Events
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUEvents
from tests.resilience.children import Child
from tests.resilience.resources import EVENTS, check_no_leak, contend, in_use, raise_at

EVALUATION_EVENTS = (Events.STARTED, Events.ITERATION_STARTED, Events.ITERATION_COMPLETED, Events.COMPLETED)


def test_lives_of_models_leave_nothing_behind():
    """No memory, files, threads, processes, shared memory or IPUs."""
    assert "nothing else left" in check_no_leak(25)


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_an_exception_in_any_handler_releases_the_ipus(event):
    """The model computes and learns on the host afterwards."""
    unreached = {IPUEvents.WEIGHTS_TO_DEVICE}
    assert raise_at(event) or event in unreached


@pytest.mark.parametrize("event", EVALUATION_EVENTS, ids=str)
def test_an_exception_in_an_evaluation_releases_the_ipus(event):
    assert raise_at(event, in_evaluation=True)


def test_threads_get_the_busy_error_or_a_turn(monkeypatch, tmp_path):
    """As configured: refused at once, or waiting; all of them end."""
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "1")
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path / "runtime"))
    done, busy = contend(threads=3, rounds=3, ipus=1)
    assert done + busy == 9 and done >= 1
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    monkeypatch.setenv("IGNITE_IPU_WAIT_SECONDS", "60")
    assert contend(threads=3, rounds=2, ipus=1) == (6, 0)
    assert in_use()["emulated IPUs"] == 0


def test_a_process_that_waits_says_who_holds_the_ipu(monkeypatch, tmp_path):
    """Its patience is bounded, and the message names the process; a killed holder's IPU is free."""
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "1")
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    monkeypatch.setenv("IGNITE_IPU_WAIT_SECONDS", "0.5")

    def hold(note):
        executor = poptorch.inferenceModel(nn.Linear(3, 2))
        executor(torch.randn(2, 3))
        note("train")
        time.sleep(60)

    child = Child(hold)
    assert child.wait_for("train")
    executor = poptorch.inferenceModel(nn.Linear(3, 2))
    started = time.monotonic()
    with pytest.raises(poptorch.Error, match=rf"in use: IPU 0 by .* of process {child.pid}.*Gave up after"):
        executor(torch.randn(2, 3))
    assert time.monotonic() - started < 50  # the holder takes a minute
    child.kill()
    child.wait()
    executor(torch.randn(2, 3))
    executor.destroy()
