"""Counts of weight updates, micro-batches and samples, and schedules by them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, CosineAnnealingScheduler, LRScheduler
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import BatchGeometry, create_ipu_trainer
from ignite_ipu.engines.counting import CountEvents, Counts
from tests.supervised import pair, task

# 64 samples in micro-batches of 4: 16 micro-batches, and with D = 2 and A = 2 four device calls in an epoch.
D, A, B, CALLS = 2, 2, 4, 4


@pytest.fixture
def trainer():
    model, optimizer = pair()
    engine = create_ipu_trainer(
        model, optimizer, nn.CrossEntropyLoss(), device_iterations=D, gradient_accumulation_steps=A
    )
    engine.optimizer = optimizer
    yield engine
    engine.ipu.close()


def run(engine, epochs=1):
    return engine.run(DataLoader(task(), batch_size=B), max_epochs=epochs)


def heard(engine, event, name):
    """Return a list of the values of `state.<name>` when the event fired."""
    seen = []
    engine.add_event_handler(event, lambda: seen.append(getattr(engine.state, name)))
    return seen


def test_one_iteration_counts_all_that_a_device_call_does(trainer):
    state = run(trainer, epochs=2)
    assert state.iteration == 2 * CALLS
    assert state.weight_updates == 2 * CALLS * D
    assert state.micro_batches == 2 * CALLS * D * A
    assert state.samples == 2 * 64


def test_events_fire_once_for_every_unit(trainer):
    updates = heard(trainer, CountEvents.WEIGHT_UPDATE_COMPLETED, "weight_updates")
    micro_batches = heard(trainer, CountEvents.MICRO_BATCH_COMPLETED, "micro_batches")
    run(trainer)
    assert updates == list(range(1, CALLS * D + 1))
    assert micro_batches == list(range(1, CALLS * D * A + 1))


def test_every_counts_in_the_units_of_the_event(trainer):
    updates = heard(trainer, CountEvents.WEIGHT_UPDATE_COMPLETED(every=3), "weight_updates")
    once = heard(trainer, CountEvents.MICRO_BATCH_COMPLETED(once=7), "micro_batches")
    samples = heard(trainer, CountEvents.SAMPLES_COMPLETED(every=24), "samples")
    run(trainer)
    assert updates == [3, 6]
    assert once == [7]
    assert samples == [32, 48]  # 16 per call: the calls in which a multiple of 24 was passed


def test_a_new_run_counts_from_zero_and_a_longer_one_goes_on(trainer):
    run(trainer, epochs=1)
    assert run(trainer, epochs=2).samples == 128
    trainer.state.max_epochs = None
    assert run(trainer, epochs=1).samples == 64


def test_counts_survive_a_checkpoint_and_a_change_of_geometry(trainer):
    run(trainer)
    saved = trainer.state_dict()
    trainer.ipu.close()
    model, optimizer = pair()
    other = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), device_iterations=4)
    other.load_state_dict(saved)
    state = run(other, epochs=2)
    assert (state.iteration, state.samples, state.weight_updates) == (2 * CALLS, 128, CALLS * D + 4 * CALLS)
    other.ipu.close()


def test_a_native_checkpoint_counts_one_update_per_iteration(trainer):
    trainer.load_state_dict({"iteration": CALLS, "epoch_length": CALLS, "max_epochs": 1})
    state = run(trainer, epochs=2)
    assert state.weight_updates == CALLS + CALLS * D


@pytest.mark.parametrize(
    ("event", "per_epoch"),
    [
        (Events.ITERATION_COMPLETED, CALLS),
        (CountEvents.WEIGHT_UPDATE_COMPLETED, CALLS * D),
        (CountEvents.MICRO_BATCH_COMPLETED, CALLS * D * A),
    ],
)
def test_a_cosine_over_three_epochs_ends_where_it_ends_natively(trainer, event, per_epoch):
    """Whatever unit a schedule counts in, its last value before the end is the native one."""
    length = 3 * per_epoch
    scheduler = CosineAnnealingScheduler(trainer.optimizer, "lr", 0.1, 0.0, length)
    trainer.add_event_handler(event, scheduler)
    run(trainer, epochs=3)
    expected = 0.05 * (1 + math.cos(math.pi * (length - 1) / length))
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(expected)


def test_other_handlers_of_the_iteration_still_see_their_own_event(trainer):
    """A checkpoint named by its iteration is not named by the samples that were counted just before."""
    trainer.add_event_handler(CountEvents.SAMPLES_COMPLETED, lambda: None)
    saved = []
    handler = Checkpoint({"trainer": trainer}, lambda checkpoint, name, metadata=None: saved.append(name))
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), handler)
    run(trainer)
    assert saved == ["trainer_2.pt", "trainer_4.pt"]


def test_counts_work_alone_with_a_loop_of_your_own():
    geometry = BatchGeometry(micro_batch_size=3, device_iterations=2)
    engine = Engine(lambda engine, batch: batch)
    Counts(lambda: geometry).attach(engine)
    updates = heard(engine, CountEvents.WEIGHT_UPDATE_COMPLETED(every=2), "weight_updates")
    state = engine.run(torch.zeros(4), max_epochs=1)
    assert (state.samples, state.weight_updates, state.micro_batches) == (24, 8, 8)
    assert updates == [2, 4, 6, 8]


def test_wrong_arguments_are_refused_as_ignite_refuses_them():
    with pytest.raises(ValueError, match="greater than zero"):
        CountEvents.SAMPLES_COMPLETED(every=0)


def recorded(engine, optimizer):
    """Return a list that grows by the learning rate of each device call."""
    rates = []
    engine.add_event_handler(Events.ITERATION_STARTED, lambda: rates.append(optimizer.param_groups[0]["lr"]))
    return rates


def native_rates(attach, batches, epochs, accumulation=1, event=Events.ITERATION_STARTED):
    """Return the rate of each update of Ignite's own engine, of whose iterations several make one."""
    _, optimizer = pair(lr=0.1)
    rates = []

    def step(engine, batch):
        if engine.state.iteration % accumulation == 0:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()

    engine = Engine(step)
    engine.add_event_handler(event, attach(optimizer))
    engine.run(batches, max_epochs=epochs)
    return rates


def test_the_documented_schedule_has_its_native_rates():
    """Every update has the rate of the native script, the warm-up's first ones, too."""
    page = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    names = {}
    exec(first, names)
    made, make = [], names["make_trainer"]

    def make_trainer(**settings):
        optimizer, trainer = make(**settings)
        made.append(recorded(trainer, optimizer))
        return optimizer, trainer

    names["make_trainer"] = make_trainer
    exec(second, names)
    expected = native_rates(names["with_warmup"], names["loader"], names["epochs"], accumulation=2)
    assert len(expected) == 48 and expected[0] < 0.02
    assert made[0] == pytest.approx(expected, rel=1e-6)


def test_a_schedule_by_updates_has_the_rates_of_a_native_one_by_iterations():
    """Ignite's before each update, and torch's after it."""
    batches = DataLoader(task(), batch_size=A * B)
    for event, ours, make in (
        (Events.ITERATION_STARTED, CountEvents.WEIGHT_UPDATE_STARTED, lambda optimizer: warmed_up(optimizer)),
        (Events.ITERATION_COMPLETED, CountEvents.WEIGHT_UPDATE_COMPLETED, lambda optimizer: falling(optimizer)),
    ):
        model, optimizer = pair(lr=0.1)
        trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), gradient_accumulation_steps=A)
        rates = recorded(trainer, optimizer)
        trainer.add_event_handler(ours, make(optimizer))
        run(trainer, epochs=2)
        assert rates == pytest.approx(native_rates(make, batches, 2, event=event))
        trainer.ipu.close()


def warmed_up(optimizer):
    return LRScheduler(torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6))


def falling(optimizer):
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return lambda: schedule.step()


def test_events_before_a_call_count_along_and_go_back(trainer):
    updates = heard(trainer, CountEvents.WEIGHT_UPDATE_STARTED, "weight_updates")
    micro_batches = heard(trainer, CountEvents.MICRO_BATCH_STARTED(every=2), "micro_batches")
    at_start = heard(trainer, Events.ITERATION_STARTED, "micro_batches")
    run(trainer)
    assert updates == list(range(1, CALLS * D + 1))
    assert micro_batches == list(range(2, CALLS * D * A + 1, 2))
    assert at_start == list(range(0, CALLS * D * A, D * A))


@pytest.mark.parametrize("event", [CountEvents.WEIGHT_UPDATE_STARTED, CountEvents.WEIGHT_UPDATE_COMPLETED])
def test_updates_of_one_call_that_a_schedule_tells_apart_are_mentioned(trainer, event, caplog):
    trainer.add_event_handler(event, CosineAnnealingScheduler(trainer.optimizer, "lr", 0.1, 0.0, 40))
    run(trainer, epochs=2)
    assert caplog.text.count("The 2 weight updates of one device call have one learning rate") == 1
