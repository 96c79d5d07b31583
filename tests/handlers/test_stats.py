"""`IPUStats` with a clock of the test's own: times inside and outside of a step."""

from __future__ import annotations

import io
import os
import sys
import types

import pytest
import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import BatchGeometry, IPUEvents, create_ipu_evaluator, create_ipu_trainer, emulator
from ignite_ipu.handlers import IPUStats
from ignite_ipu.handlers.device_info import DeviceInfo
from tests.ignite.side import handlers
from tests.supervised import pair, task


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_throughput_leaves_out_compilation_and_evaluation():
    """Steps of 2 s in total, 1 s of waiting for data, 100 s of compiling, 7 s of loading, 1000 s of other handlers."""
    clock = Clock()
    model, optimizer = pair()
    trainer = create_ipu_trainer(
        model, optimizer, nn.CrossEntropyLoss(), device_iterations=2, gradient_accumulation_steps=2
    )

    def takes(event, seconds):
        trainer.add_event_handler(event, lambda: setattr(clock, "now", clock.now + seconds))

    takes(IPUEvents.DEVICE_ATTACHED, 7.0)
    # Attached before the statistics, so that the time is over when these look at the clock.
    takes(Events.ITERATION_COMPLETED, 0.5)
    takes(Events.GET_BATCH_COMPLETED, 0.25)
    stats = IPUStats(clock=clock)
    stats.attach(trainer)
    takes(IPUEvents.COMPILE_STARTED, 100.0)
    takes(Events.ITERATION_COMPLETED, 1000.0)
    trainer.run(DataLoader(task(), batch_size=4), max_epochs=1)
    metrics = trainer.state.metrics
    assert metrics["ipu/compile_seconds"] == 100.0
    assert metrics["ipu/attach_seconds"] == 7.0
    assert metrics["ipu/step_seconds"] == 0.5
    assert metrics["ipu/data_seconds"] == 0.25
    assert metrics["ipu/samples_per_second"] == pytest.approx(64 / 3)
    assert metrics["ipu/micro_batches_per_second"] == pytest.approx(16 / 3)
    assert metrics["ipu/weight_updates_per_second"] == pytest.approx(8 / 3)
    # 64 rows of 6 floats and a label each; the loss comes back as a Python number. No weights moved by our doing.
    assert metrics["ipu/bytes_to_device"] == 64 * (6 * 4 + 8)
    assert metrics["ipu/bytes_from_device"] == 0
    trainer.ipu.close()


def test_attaching_again_after_an_evaluation_on_the_same_ipus_is_no_step_time(monkeypatch):
    """PopTorch attaches a program that it compiles; each of the two later epochs attaches it again, which takes 7 s."""
    clock = Clock()
    attach = emulator.PoplarExecutor.attachToDevice

    def slow(executor):
        clock.now += 7.0
        attach(executor)

    monkeypatch.setattr(emulator.PoplarExecutor, "attachToDevice", slow)
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), config={"share_ipus": True})
    evaluator = create_ipu_evaluator(model)
    IPUStats(clock=clock).attach(trainer)
    loader = DataLoader(task(), batch_size=8)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: seen.append(dict(trainer.state.metrics)))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader))
    seen = []
    trainer.run(loader, max_epochs=3)
    assert [metrics["ipu/attach_seconds"] for metrics in seen] == [0.0, 7.0, 14.0]
    assert [metrics["ipu/step_seconds"] for metrics in seen] == [0.0] * 3
    trainer.ipu.close()


def test_an_evaluator_counts_the_samples_of_an_incomplete_batch_and_its_weights():
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    evaluator = create_ipu_evaluator(model)
    clock = Clock()
    IPUStats(clock=clock).attach(evaluator)
    evaluator.add_event_handler(Events.ITERATION_STARTED, lambda: setattr(clock, "now", clock.now + 1.0))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(DataLoader(task(20), batch_size=8)))
    trainer.run(DataLoader(task(), batch_size=16), max_epochs=2)
    assert evaluator.state.metrics["ipu/samples_per_second"] == pytest.approx(20 / 3)
    assert "ipu/weight_updates_per_second" not in evaluator.state.metrics
    # Predictions and targets of 20 rows, and one download of the weights for the second evaluation.
    weights = sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    assert evaluator.state.metrics["ipu/bytes_from_device"] == 20 * (3 * 4 + 8) + weights
    trainer.ipu.close()


def test_samples_that_do_not_fill_a_call_are_counted():
    """The last iteration of 60 samples makes two updates of its 12, in a program of their size."""
    clock = Clock()
    factors = {"device_iterations": 2, "gradient_accumulation_steps": 2}
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss(), drop_last=False, **factors)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: setattr(clock, "now", clock.now + 1))
    IPUStats(clock=clock).attach(trainer)
    trainer.run(DataLoader(task(60), batch_size=4))
    metrics = trainer.state.metrics
    assert metrics["ipu/samples_per_second"] == 60 / 4
    assert metrics["ipu/micro_batches_per_second"] == 15 / 4
    assert metrics["ipu/weight_updates_per_second"] == 8 / 4
    trainer.ipu.close()


def test_statistics_every_few_iterations_are_of_those_iterations():
    clock = Clock()
    engine = Engine(lambda engine, batch: setattr(clock, "now", clock.now + float(batch.mean())))
    IPUStats(lambda: BatchGeometry(micro_batch_size=4), every=2, clock=clock).attach(engine)
    seen = []
    engine.add_event_handler(
        Events.ITERATION_COMPLETED(every=2), lambda: seen.append(engine.state.metrics["ipu/samples_per_second"])
    )
    engine.run([torch.full((4,), seconds) for seconds in (1.0, 1.0, 2.0, 2.0)])
    assert seen == [4.0, 2.0]


def test_what_poptorch_and_a_plan_say_is_there(monkeypatch):
    """Latencies of the last call, cycles where an IPU counts them, and the memory of the fullest IPU."""
    monkeypatch.setattr(emulator.PoplarExecutor, "cycleCount", lambda executor: 1234)
    config = {"pipeline": ["0", "2"], "execution": "sharded", "memory_per_ipu": 10**6}
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss(), config=config)
    IPUStats(cycles=True).attach(trainer)
    metrics = trainer.run(DataLoader(task(), batch_size=8)).metrics
    program = trainer.ipu.training
    assert metrics["ipu/latency_seconds"] == program.executor.getLatency()[2] > 0
    assert metrics["ipu/compute_seconds"] == program.executor.getComputeLatency()[2]
    assert metrics["ipu/cycles"] == 1234
    assert metrics["ipu/planned_bytes_per_ipu"] == max(memory.total for memory in program.placing.plan.memory_per_ipu)
    trainer.ipu.close()


def test_a_progress_bar_shows_them():
    screen = io.StringIO()
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss())
    IPUStats(every=1).attach(trainer)
    bar = handlers.ProgressBar(file=screen, mininterval=0)
    bar.attach(trainer, metric_names=["ipu/samples_per_second", "ipu/compute_seconds"])
    trainer.run(DataLoader(task(), batch_size=8))
    assert "ipu/samples_per_second=" in screen.getvalue() and "ipu/compute_seconds=" in screen.getvalue()
    trainer.ipu.close()


def test_tensorboard_shows_them(tmp_path):
    """Each as a scalar of its own, with the value that the engine's metrics have."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss())
    IPUStats().attach(trainer)
    with handlers.TensorboardLogger(log_dir=str(tmp_path)) as logger:
        logger.attach_output_handler(trainer, Events.EPOCH_COMPLETED, tag="training", metric_names="all")
        trainer.run(DataLoader(task(), batch_size=8))
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    for name in ("ipu/samples_per_second", "ipu/latency_seconds", "ipu/bytes_to_device"):
        assert events.Scalars(f"training/{name}")[0].value == pytest.approx(trainer.state.metrics[name])
    trainer.ipu.close()


@pytest.fixture
def inventory(monkeypatch):
    """Three IPUs as gcipuinfo lists them: two of this process, one of another."""
    own = {"user process id": str(os.getpid()), "average board temp": "31.0 C", "clock": "1850MHz"}
    listed = [
        {**own, "id": "0", "ipu utilisation": "40.00%", "ipu utilisation (session)": "80.00%", "ipu power": "101.5W"},
        {**own, "id": "1", "ipu utilisation": "60.00%", "ipu utilisation (session)": "90.00%", "ipu power": "N/A"},
        {"user process id": "1", "id": "2", "ipu utilisation": "99.00%"},
    ]

    class Inventory:
        def setUpdateMode(self, again):
            assert again

        def getDevices(self):
            if isinstance(listed, Exception):
                raise listed
            return listed

    monkeypatch.setitem(sys.modules, "gcipuinfo", types.SimpleNamespace(gcipuinfo=Inventory))
    return listed


def test_utilisation_is_that_of_this_process_s_ipus(inventory):
    """Averages over those that tell a number, in the log beside latency and throughput."""
    trainer = create_ipu_trainer(*pair(), nn.CrossEntropyLoss())
    IPUStats().attach(trainer)
    metrics = trainer.run(DataLoader(task(), batch_size=8)).metrics
    assert metrics["ipu/utilisation_percent"] == 50.0 and metrics["ipu/session_utilisation_percent"] == 85.0
    assert metrics["ipu/power_watts"] == 101.5 and metrics["ipu/clock_mhz"] == 1850.0
    assert metrics["ipu/board_celsius"] == 31.0 and "ipu/die_celsius" not in metrics
    assert "ipu/latency_seconds" in metrics
    trainer.ipu.close()


def test_without_gcipuinfo_or_where_it_fails_nothing_is_told_of_devices(monkeypatch, caplog):
    class Broken:
        def setUpdateMode(self, again):
            raise RuntimeError("no driver")

    for module, warnings in ((None, 0), (types.SimpleNamespace(gcipuinfo=Broken), 1)):
        monkeypatch.setitem(sys.modules, "gcipuinfo", module)
        caplog.clear()
        assert DeviceInfo().metrics() == {}
        assert len([record for record in caplog.records if "gcipuinfo fails" in record.getMessage()]) == warnings


@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), 0),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
        (lambda p: torch.optim.Adam(p), 2),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_the_state_is_what_torch_keeps(make, slots):
    """Bytes of the weights, and as many for each tensor of state that the optimizer has of them afterwards."""
    model, _ = pair()
    optimizer = make(model.parameters())
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    IPUStats().attach(trainer)
    metrics = trainer.run(DataLoader(task(), batch_size=8)).metrics
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    kept = [entry for state in optimizer.state.values() for entry in state.values()]
    state = sum(each.numel() * each.element_size() for each in kept if torch.is_tensor(each) and each.dim())
    assert metrics["ipu/state_bytes"] == weights + state == weights * (1 + slots)
    trainer.ipu.close()
