"""Counts of weight updates, micro-batches and samples, and what is scheduled by them."""

from __future__ import annotations

import math

import pytest
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, CosineAnnealingScheduler
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
    """Return a list of what `state.<name>` was whenever the event fired."""
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
