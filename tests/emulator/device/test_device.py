"""Owners of emulated IPUs: busy devices, waiting, ids, offline targets, and counts."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from unittest import mock

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.device import device
from ignite_ipu.emulator.device.machine import machine
from ignite_ipu.emulator.errors import Error
from tests.processes import Process

X = torch.ones(2, 3)


@pytest.fixture(autouse=True)
def _ipus(monkeypatch, tmp_path):
    """Give each test a machine of two IPUs."""
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "2")
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path / "run"))


def inference(**settings) -> poptorch.PoplarExecutor:
    options = poptorch.Options()
    for name, value in settings.items():
        getattr(options, name)(value)
    return poptorch.inferenceModel(nn.Linear(3, 2), options)


def held(executor: poptorch.PoplarExecutor) -> set:
    """Return the IPUs that an executor holds."""
    _, _, (holder,), _ = executor._executable.loaded.give_back.peek()
    return {ipu for ipu, user in machine().users().items() if user == holder}


def test_executors_hold_ipus_from_compile_to_detach():
    first, second, third = inference(), inference(), inference(modelName="third")
    first.compile(X)
    second(X)
    assert held(first) | held(second) == {0, 1}
    with pytest.raises(Error, match=r"Failed to acquire 1 IPU\(s\) for PoplarExecutor third.*IPU 0 by .*IPU 1 by "):
        third(X)
    assert not third.isCompiled()
    first.detachFromDevice()
    assert third(X).shape == (2, 2)
    with pytest.raises(Error, match="Failed to acquire"):
        first(X)
    third.destroy()
    first(X)


def test_ipus_are_given_back_where_loading_fails():
    executor = inference()
    with mock.patch("ignite_ipu.emulator.runtime.loading.Executable", side_effect=MemoryError), pytest.raises(
        MemoryError
    ):
        executor.compile(X)
    assert not machine().users()
    assert executor(X).shape == (2, 2) and len(held(executor)) == 1


def test_what_nobody_refers_to_any_more_is_free_again():
    """A PopTorch optimizer and its executor hold each other, so that only a garbage collection frees them."""
    gc.disable()
    try:
        for _ in range(2):
            model = nn.Sequential(nn.Linear(3, 2), nn.Flatten(0))
            executor = poptorch.trainingModel(
                WithLoss(model), optimizer=poptorch.optim.Adam(model.parameters(), lr=1.0)
            )
            executor(X)
        del executor, model
        inference()(X)
    finally:
        gc.enable()


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return poptorch.identity_loss(self.model(x), "sum")


def test_a_model_that_the_machine_is_too_small_for_never_waits(monkeypatch):
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    with pytest.raises(Error, match=r"Failed to acquire 4 IPU\(s\).*the emulated machine has 2"):
        inference(replicationFactor=4)(torch.ones(4, 3))


def test_waiting_ends_when_another_thread_gives_the_ipus_back(monkeypatch, caplog):
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    logger = logging.getLogger("poptorch::python")
    caplog.set_level("WARNING", logger=logger.name)
    first = inference(replicationFactor=2)
    first(X)
    waiting = threading.Event()

    class WhenWaiting(logging.Handler):
        def emit(self, record):
            if "Waiting" in record.getMessage():
                waiting.set()

    def give_back():
        waiting.wait(60)
        first.detachFromDevice()

    waits = WhenWaiting()
    logger.addHandler(waits)
    giving_back = threading.Thread(target=give_back)
    giving_back.start()
    try:
        assert inference()(X).shape == (2, 2)
    finally:
        logger.removeHandler(waits)
        giving_back.join()
    assert not first.isAttachedToDevice()
    assert "Failed to acquire" in caplog.text and "Waiting" in caplog.text


def test_waiting_for_oneself_is_refused(monkeypatch):
    """On hardware this program would hang for ever."""
    # Other tests of this process may have left threads, such as a progress bar's, which could give IPUs back.
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    first = inference(replicationFactor=2)
    first(X)
    with pytest.raises(Error, match="Waiting would never end: this process has them all"):
        inference()(X)


def test_ipus_that_are_given_back_in_between_are_taken(monkeypatch):
    """Busy at the attempt, and free when the owner is looked up."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
    first = inference(replicationFactor=2)
    first(X)
    users = device.EmulatedMachine.users

    def after_giving_back(where):
        if first.isAttachedToDevice():
            first.detachFromDevice()
        return users(where)

    monkeypatch.setattr(device.EmulatedMachine, "users", after_giving_back)
    assert inference()(X).shape == (2, 2)


def holder_process(processes) -> Process:
    """Start another process that holds both IPUs until it is killed."""
    code = (
        "import time\n"
        "from ignite_ipu.emulator.device.machine import holder, machine\n"
        "assert machine().take([range(2)], holder('the other program', 0)) == {0, 1}\n"
        "print('taken', flush=True); time.sleep(100)"
    )
    process = processes.start(["-c", code])
    assert process.line() == "taken\n", process.errors()
    return process


def test_ipus_of_another_process_are_busy_until_it_ends(processes, monkeypatch):
    with holder_process(processes) as process:
        with pytest.raises(Error, match=rf"in use: IPU 0 by the other program of process {process.pid}"):
            inference()(X)
        monkeypatch.setenv("POPTORCH_WAIT_FOR_IPU", "1")
        monkeypatch.setenv("IGNITE_IPU_WAIT_SECONDS", "0.3")
        with pytest.raises(
            Error, match=rf"process {process.pid}.*Gave up after \d+\.\d s, as IGNITE_IPU_WAIT_SECONDS=0.3"
        ):
            inference()(X)
        monkeypatch.delenv("IGNITE_IPU_WAIT_SECONDS")
        threading.Timer(0.3, process.send_signal, [signal.SIGKILL]).start()
        assert inference()(X).shape == (2, 2)


@pytest.mark.parametrize("text", ["-1", "soon", "nan"])
def test_the_limit_of_waiting_is_checked(monkeypatch, text):
    first = inference(replicationFactor=2)
    first(X)
    monkeypatch.setenv("IGNITE_IPU_WAIT_SECONDS", text)
    with pytest.raises(Error, match="IGNITE_IPU_WAIT_SECONDS must be a number of seconds"):
        inference()(X)


def test_device_ids_choose_the_ipus():
    """Ids 0 and 1 are the IPUs, id 2 is the pair of them."""
    second = inference(useIpuId=1)
    second(X)
    assert held(second) == {1}
    first = inference(useIpuId=0)
    first(X)
    with pytest.raises(Error, match="Failed to acquire"):
        inference(useIpuId=2)(X)
    first.destroy()
    second.destroy()
    pair = inference(useIpuId=2)
    pair(X)
    assert held(pair) == {0, 1}  # attaching to a group takes all of it


def test_ids_that_do_not_do_are_refused():
    with pytest.raises(Error, match=r"Device 1 .*has 1 IPU\(s\). Expected at least replication factor"):
        inference(useIpuId=1, replicationFactor=2)(X)
    with pytest.raises(Error, match="has the ids 0 to 2"):
        inference(useIpuId=3)(X)


def test_ipu_models_take_no_ipus(monkeypatch):
    inference(replicationFactor=2)(X)
    executors = [inference(useIpuModel=True) for _ in range(3)]
    for executor in executors:
        executor(X)
    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    inference()(X)
    assert [executor.isAttachedToDevice() for executor in executors] == [True] * 3
    monkeypatch.setenv("POPTORCH_IPU_MODEL_VERSION", "ipu3")
    with pytest.raises(ValueError, match="POPTORCH_IPU_MODEL_VERSION must be one of"):
        inference()(X)


def test_always_attaches_when_compiling_and_on_demand_when_running():
    always, on_demand = inference(), inference(connectionType=poptorch.ConnectionType.OnDemand)
    always.compile(X)
    on_demand.compile(X)
    assert always.isAttachedToDevice() and not on_demand.isAttachedToDevice()
    on_demand(X)
    assert on_demand.isAttachedToDevice()


def test_an_offline_target_compiles_and_never_runs():
    offline = inference(useOfflineIpuTarget=2)
    offline.compile(X)
    assert offline.isCompiled() and not offline.isAttachedToDevice()
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        offline(X)
    with pytest.raises(AssertionError, match="Trying to attach to an offline device"):
        offline.attachToDevice()
    with pytest.raises(Error, match="Device is not attached"):
        offline.detachFromDevice()


def test_attaching_twice_is_an_error():
    executor = inference()
    executor(X)
    with pytest.raises(Error, match="Device is already attached"):
        executor.attachToDevice()


def test_counters_of_an_executor_and_of_the_process():
    before = poptorch.counters()
    executor = inference()
    executor(X)
    executor(X)
    executor.detachFromDevice()
    executor.attachToDevice()
    own = poptorch.counters(executor)
    assert own == poptorch.counters() - before
    assert (own.compiles, own.attaches, own.detaches) == (1, 2, 1)
    assert (own.weight_uploads, own.weight_downloads) == (2, 0)
    assert own.weight_upload_bytes == 2 * 4 * (3 * 2 + 2)
    assert (own.device_calls, own.micro_batches, own.optimizer_updates) == (2, 2, 0)


def test_a_copy_of_the_counters_stands_still():
    executor = inference()
    executor(X)
    copy = poptorch.counters(executor)
    executor(X)
    assert copy.device_calls == 1 and (poptorch.counters(executor) - copy).device_calls == 1


def test_counting_from_several_threads_loses_nothing():
    meter = device.Meter()
    threads = [threading.Thread(target=lambda: [meter.add(device_calls=1) for _ in range(2000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert meter.own.device_calls == 8000
