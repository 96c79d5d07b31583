"""`IPUStats` with a clock of the test's own: what belongs to a step and what does not."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import BatchGeometry, IPUEvents, create_ipu_evaluator, create_ipu_trainer, emulator
from ignite_ipu.handlers import IPUStats
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
