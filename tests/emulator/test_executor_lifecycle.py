"""An executor from its first compile to its end: hooks, retries, progress, random state, times, logs and memory."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from datetime import timedelta

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.errors import LONGEST_MESSAGE, Error, backend_error
from ignite_ipu.emulator.logs import backend_logger
from tests.emulator.calls import Calls

X, Y = torch.linspace(-1, 1, 12).view(4, 3), torch.linspace(0, 1, 8).view(4, 2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x, y=None):
        out = self.linear(x)
        return out if y is None else (out, nn.functional.mse_loss(out, y))


class Noise(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)


def test_hooks_surround_the_one_run_of_forward():
    calls = []

    class Watched(Model):
        def forward(self, x):
            calls.append("forward")
            return super().forward(x)

    handles = [
        poptorch.registerPreCompileHook(lambda: calls.append("pre")),
        poptorch.registerPostCompileHook(lambda: calls.append("post")),
    ]
    try:
        executor = poptorch.inferenceModel(Watched())
        executor.compile(X)
        executor(X)
        assert calls == ["pre", "forward", "post"]
    finally:
        for handle in handles:
            handle.remove()
    poptorch.inferenceModel(Watched())(X)
    assert calls == ["pre", "forward", "post", "forward"]


def test_post_compile_hooks_run_when_tracing_fails_too():
    calls = []
    handle = poptorch.registerPostCompileHook(lambda: calls.append("post"))
    try:
        with pytest.raises(ZeroDivisionError):
            poptorch.inferenceModel(Fails())(X)
    finally:
        handle.remove()
    assert calls == ["post"]


@pytest.mark.parametrize("register", [poptorch.registerPreCompileHook, poptorch.registerPostCompileHook])
def test_hooks_must_be_callable(register):
    with pytest.raises(RuntimeError, match="must be callable"):
        register(3)


class Fails(Model):
    fails = True

    def forward(self, x):
        if self.fails:
            raise ZeroDivisionError
        return super().forward(x)


def test_a_compile_that_failed_can_be_repeated():
    executor = poptorch.inferenceModel(Fails())
    with pytest.raises(ZeroDivisionError):
        executor.compile(X)
    assert not executor.isCompiled() and not executor.isAttachedToDevice()
    assert type(executor.model.linear.weight) is nn.Parameter
    executor._model.fails = False
    assert executor(X).shape == (4, 2)


def test_compiling_twice_only_warns(caplog):
    executor = poptorch.inferenceModel(Model())
    executor.compile(X)
    executor.compile(torch.ones(9, 3))
    assert "Call to compile() ignored" in caplog.text
    assert executor(X).shape == (4, 2) and poptorch.counters(executor).compiles == 1


def test_the_time_of_a_compilation():
    executor = poptorch.inferenceModel(Model())
    with pytest.raises(Error, match="compile the model before obtaining"):
        executor.compilationTime()
    executor.compile(X)
    assert timedelta(0) < executor.compilationTime() < timedelta(minutes=1)
    hidden = poptorch.inferenceModel(Model(), poptorch.Options().showCompilationProgressBar(False))
    hidden.compile(X)
    with pytest.raises(Error, match="Please set showCompilationProgressBar"):
        hidden.compilationTime()


def test_a_terminal_is_shown_the_progress_of_a_compilation(monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    poptorch.inferenceModel(Model())(X)
    assert "2/2" in capsys.readouterr().err
    poptorch.inferenceModel(Model(), poptorch.Options().showCompilationProgressBar(False))(X)
    assert "compilation" not in capsys.readouterr().err


def test_a_line_of_the_log_leaves_the_bar_whole(monkeypatch, capsys):
    """The line is written above the bar: the two are never on one line of the screen."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)

    class Counting(Model):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(1, dtype=torch.int64))

    poptorch.inferenceModel(Counting())(X)
    shown = capsys.readouterr().err
    lines = [line.split("\r")[-1] for line in shown.split("\n")]
    assert [("downgraded" in line, "Graph compilation" in line) for line in lines if line.strip()] == [
        (True, False),
        (False, True),
    ]


def test_the_bar_of_a_failed_compilation_ends_its_line(monkeypatch, capsys):
    """The error's text starts on a new one, and no thread stays behind."""
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    threads = threading.active_count()
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        poptorch.inferenceModel(Model(), poptorch.Options().deviceIterations(3))(X)
    shown = capsys.readouterr().err
    assert "0/2 [" in shown and "2/2" not in shown and shown.endswith("\n")
    assert threading.active_count() == threads


def test_the_bar_of_a_program_that_cannot_be_loaded_ends_its_line(monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    executor = poptorch.inferenceModel(Model())
    with poptorch.inject_faults({}, copies={0: poptorch.Fault()}), pytest.raises(Error) as caught:
        executor(X)
    # The error keeps the frames that draw the bar, which would end the line themselves when they went.
    assert caught.value.__traceback__ is not None
    shown = capsys.readouterr().err
    assert "1/2 [" in shown and "2/2" not in shown and shown.endswith("\n")


def test_a_quick_compilation_is_not_worth_a_line_in_a_file(capsys):
    poptorch.inferenceModel(Model())(X)
    assert "compilation" not in capsys.readouterr().err


# -- random state ------------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_sequences_and_leave_the_hosts_stream_alone():
    x = torch.ones(1, 64)
    first = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(5))
    second = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(5))
    host = torch.random.get_rng_state()
    one, two = [first(x) for _ in range(3)], [second(x) for _ in range(3)]
    assert torch.equal(torch.random.get_rng_state(), host)
    assert all(torch.equal(a, b) for a, b in zip(one, two))
    assert not torch.equal(one[0], one[1])


@pytest.mark.parametrize("seed", [None, 5])
def test_before_the_first_run_there_is_no_random_state_but_a_seed(seed):
    """Detaching and attaching do not make one."""
    options = poptorch.Options() if seed is None else poptorch.Options().randomSeed(seed)
    executor, whole = poptorch.inferenceModel(Noise(), options), poptorch.inferenceModel(Noise(), options)
    x = torch.ones(1, 64)
    executor.compile(x)
    for _ in range(2):
        assert executor.rng_state == (None if seed is None else [seed])
        executor.detachFromDevice()
        executor.attachToDevice()
    drawn = executor(x)
    assert len(executor.rng_state) > 1
    if seed is not None:
        assert torch.equal(drawn, whole(x))


def test_a_random_state_can_be_returned_to():
    x = torch.ones(1, 64)
    executor = poptorch.inferenceModel(Noise(), poptorch.Options().randomSeed(5))
    executor(x)
    state = executor.rng_state
    assert state[0] == 5 and all(isinstance(number, int) for number in state)
    following = executor(x)
    executor.rng_state = state
    assert torch.equal(executor(x), following)
    executor.detachFromDevice()
    executor.rng_state = state
    executor.attachToDevice()
    assert torch.equal(executor(x), following)


# -- times and names ---------------------------------------------------------------------------------------------------


def test_events_of_a_call_have_one_time_for_each_tensor_and_micro_batch():
    """2 iterations x 1 x 2 replicas: four steps go in for each of two inputs; Final returns one for each replica."""
    options = poptorch.Options().deviceIterations(2).replicationFactor(2)
    executor = poptorch.trainingModel(Model(), options)
    executor(X, Y)
    counters = executor.getPerfCounters()
    assert {name: [len(steps) for steps in tensors] for name, tensors in counters.items()} == {
        "input": [4, 4],
        "input_complete": [4, 4],
        "output": [2, 2],
        "output_complete": [2, 2],
    }
    for latency in (executor.getLatency(), executor.getComputeLatency(), executor.getHostIpuLatency()):
        low, high, mean = latency
        assert 0 <= low <= mean <= high


def test_anchors_return_tensors_from_inside():
    executor = poptorch.inferenceModel(Squares())
    executor.compile(X)
    (square,) = (name for name in executor.getTensorNames() if "pow" in name)
    options = poptorch.Options()
    options.anchorTensor("square", square)
    anchored = poptorch.inferenceModel(Squares(), options)
    with pytest.raises(AssertionError, match="No tensor with name"):
        anchored.getAnchoredTensor("square")
    assert torch.allclose(anchored(X), (X**2).sum())
    assert torch.equal(anchored.getAnchoredTensor("square"), X**2)


class Squares(nn.Module):
    def forward(self, x):
        return x.pow(2).sum()


# -- options of the back end -------------------------------------------------------------------------------------------


def test_synthetic_data_replaces_the_inputs():
    """The mean of 4000 normal numbers is within 0.1 of 0 (6 sigma), whatever was passed."""
    executor = poptorch.inferenceModel(nn.Identity(), poptorch.Options().enableSyntheticData(True).randomSeed(1))
    out = executor(torch.full((4, 1000), 100.0))
    assert abs(out.mean()) < 0.1 and abs(out.std() - 1) < 0.1
    indices = poptorch.inferenceModel(nn.Embedding(3, 2), poptorch.Options().enableSyntheticData(True))
    assert indices(torch.full((4,), 2)).shape == (4, 2)


def test_synthetic_data_cross_nothing():
    """Each tensor has an empty list of times, and no latency."""
    model = Calls(lambda x, y: (x + y, x - y, x * y))
    executor = poptorch.inferenceModel(model, poptorch.Options().enableSyntheticData(True).deviceIterations(2))
    executor(torch.ones(4), torch.ones(4))
    counters = executor.getPerfCounters()
    assert counters["input"] == counters["input_complete"] == [[], []]
    assert counters["output"] == counters["output_complete"] == [[], [], []]
    latencies = executor.getLatency, executor.getHostIpuLatency, executor.getComputeLatency, executor.getIpuHostLatency
    assert {latency() for latency in latencies} == {(0.0, 0.0, 0.0)}


def test_repeated_messages_are_limited_as_the_options_say(caplog):
    poptorch.inferenceModel(Model(), poptorch.Options().maxRepeatLogs(2))(X)
    for _ in range(5):
        backend_logger.warning("once more")
    assert len(caplog.records) == 2 and "not shown again" in caplog.text
    caplog.clear()
    poptorch.inferenceModel(Model(), poptorch.Options().maxRepeatLogs(None))(X)
    for _ in range(5):
        backend_logger.warning("once more")
    assert len(caplog.records) == 5


def test_a_very_long_error_is_written_in_full_to_the_log_directory(tmp_path):
    class Verbose(nn.Module):
        def forward(self, x):
            raise backend_error("x" * (2 * LONGEST_MESSAGE))

    with pytest.raises(Error, match=r"poptorch_error\.log") as caught:
        poptorch.inferenceModel(Verbose(), poptorch.Options().logDir(str(tmp_path)))(X)
    assert len(str(caught.value)) < 1.5 * LONGEST_MESSAGE
    assert "x" * (2 * LONGEST_MESSAGE) in (tmp_path / "poptorch_error.log").read_text()


def test_executors_put_their_calls_on_a_profiling_channel(tmp_path, processes):
    code = (
        "import torch, ignite_ipu.emulator as poptorch\n"
        "executor = poptorch.inferenceModel(torch.nn.Linear(2, 2).eval())\n"
        "executor(torch.ones(1, 2)); executor.copyWeightsToDevice()\n"
    )
    environment = {**os.environ, "PVTI_OPTIONS": f'{{"enable": "true", "directory": "{tmp_path}"}}'}
    processes.run(["-c", code], check=True, env=environment)
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    for name in ("modelCompilation", "modelExecution", "copyWeightsToDevice", "poptorch.inferenceModel"):
        assert f'"{name}"' in text


# -- memory ------------------------------------------------------------------------------------------------------------


def bytes_in_tensors() -> int:
    """Return the bytes of all memory that some living tensor uses, each counted once."""
    gc.collect()
    sizes = {}
    for found in gc.get_objects():
        kind = type(found)
        if kind in (torch.Tensor, nn.Parameter) or kind.__name__ in ("PoptorchParameter", "PoptorchBuffer"):
            # PyTorch 2.0 keeps objects of tensors that are undefined: they have no device.
            with torch._C.DisableTorchFunctionSubclass(), contextlib.suppress(RuntimeError):
                if found.device.type == "cpu" and found.layout is torch.strided:
                    storage = torch.Tensor.untyped_storage(found)
                    sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


@pytest.mark.parametrize(("optimizer", "moments"), [(poptorch.optim.SGD, 0), (poptorch.optim.Adam, 2)])
def test_weights_exist_twice_and_the_optimizers_state_once(optimizer, moments):
    """On the host and on the device; nothing else of their size outlives a call."""
    before = bytes_in_tensors()
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 1000), Loss())
    weights = 4 * 2 * (1000 * 1000 + 1000)
    executor = poptorch.trainingModel(model, optimizer=optimizer(model.parameters(), lr=1e-3))
    for _ in range(3):
        executor(torch.ones(2, 1000))
    used = bytes_in_tensors() - before
    assert (2 + moments) * weights <= used <= (2.02 + moments) * weights
    executor.copyWeightsToHost()
    assert bytes_in_tensors() - before <= (2.02 + moments) * weights
    executor.destroy()
    assert bytes_in_tensors() - before <= (1.02 + moments) * weights  # the state is kept for the next attach


class Loss(nn.Module):
    def forward(self, x):
        return poptorch.identity_loss(x, "mean")
