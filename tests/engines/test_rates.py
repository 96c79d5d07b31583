"""Learning rates worked out before a run are those that the run has."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import (
    ConcatScheduler,
    CosineAnnealingScheduler,
    LRScheduler,
    PiecewiseLinear,
    create_lr_scheduler_with_warmup,
)
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from ignite_ipu import CountEvents, create_ipu_trainer
from ignite_ipu.errors import LoaderError
from tests.supervised import task

EPOCHS = 3


def ignites(trainer, optimizer):
    trainer.add_event_handler(Events.ITERATION_STARTED, CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.0, 7))


def by_update(trainer, optimizer):
    schedule = PiecewiseLinear(optimizer, "lr", [(0, 0.0), (8, 0.1), (30, 0.01)])
    trainer.add_event_handler(CountEvents.WEIGHT_UPDATE_COMPLETED, schedule)


def by_micro_batch_and_filtered(trainer, optimizer):
    trainer.add_event_handler(
        CountEvents.MICRO_BATCH_COMPLETED(every=3), CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.0, 9)
    )


def by_samples(trainer, optimizer):
    trainer.add_event_handler(
        CountEvents.SAMPLES_COMPLETED(every=30), CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.0, 9)
    )


def warmed_up(trainer, optimizer):
    schedule = create_lr_scheduler_with_warmup(lr_scheduler.ExponentialLR(optimizer, 0.9), 0.0, 3, 0.1)
    trainer.add_event_handler(Events.ITERATION_STARTED, schedule)


def joined(trainer, optimizer):
    parts = [
        CosineAnnealingScheduler(optimizer, "lr", 0.1, 0.0, 8),
        PiecewiseLinear(optimizer, "lr", [(0, 0.0), (4, 1)]),
    ]
    trainer.add_event_handler(Events.ITERATION_STARTED, ConcatScheduler(parts, durations=[5]))


def torchs_wrapped(trainer, optimizer):
    trainer.add_event_handler(Events.ITERATION_STARTED, LRScheduler(lr_scheduler.StepLR(optimizer, 2, 0.5)))


def torchs_by_a_function(trainer, optimizer):
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.7)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: schedule.step())


def torchs_by_a_decorated_function(trainer, optimizer):
    schedule = lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=40)

    @trainer.on(Events.ITERATION_COMPLETED(every=2))
    def advance(engine):
        schedule.step()


@pytest.fixture
def made():
    """Return a trainer whose calls make two updates from two micro-batches each, its optimizer and its data.

    One group's rate is a number. The other's is a tensor, in which PyTorch's schedulers write.
    """
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": torch.tensor(0.01)}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    with pytest.warns(UserWarning, match="lr is a tensor"):
        trainer = create_ipu_trainer(
            model, optimizer, nn.CrossEntropyLoss(), device_iterations=2, gradient_accumulation_steps=2
        )
    yield trainer, optimizer, DataLoader(task(), batch_size=4)
    trainer.ipu.close()


@pytest.mark.parametrize(
    "attach",
    [
        *(ignites, by_update, by_micro_batch_and_filtered, by_samples, warmed_up, joined, torchs_wrapped),
        *(torchs_by_a_function, torchs_by_a_decorated_function),
    ],
    ids=lambda attach: attach.__name__,
)
def test_they_are_those_of_the_run(attach, made):
    """Twice worked out, and then seen at each call of a run that nothing has disturbed."""
    trainer, optimizer, loader = made
    attach(trainer, optimizer)
    state, groups = dict(vars(trainer.state)), copy.deepcopy([group["lr"] for group in optimizer.param_groups])
    planned = trainer.learning_rates(loader, EPOCHS)
    assert trainer.learning_rates(loader, EPOCHS).rows == planned.rows and planned.left_out == ()
    assert dict(vars(trainer.state)) == state and [group["lr"] for group in optimizer.param_groups] == groups
    assert trainer.ipu.training.executor is None
    seen = []

    def look():
        updates = trainer.state.weight_updates
        rates = tuple(group["lr"] for group in trainer.ipu.link.conversion.optimizer.param_groups)
        seen.append((trainer.state.iteration, updates - 1, updates, rates))

    # The device's value at the call, in single precision: read before any scheduler runs again.
    handlers = trainer._event_handlers[Events.ITERATION_COMPLETED]
    trainer.add_event_handler(Events.ITERATION_COMPLETED, look)
    handlers.insert(1, handlers.pop())
    trainer.run(loader, max_epochs=EPOCHS)
    assert [row[:3] for row in planned.rows] == [row[:3] for row in seen]
    for row, (*_, rates) in zip(planned.rows, seen):
        assert row.rates == pytest.approx(rates, rel=1e-6, abs=1e-9)


def rising(optimizer, name):
    return PiecewiseLinear(optimizer, name, [(0, 0.0), (2, 0.0), (6, 0.5)])


def alone(trainer, optimizer):
    trainer.add_event_handler(Events.ITERATION_STARTED, rising(optimizer, "momentum"))


def in_a_part(trainer, optimizer):
    parts = [rising(optimizer, "momentum"), rising(optimizer, "momentum")]
    trainer.add_event_handler(Events.ITERATION_STARTED(every=2), ConcatScheduler(parts, durations=[4]))


def two_by_a_function(trainer, optimizer):
    schedule, other = rising(optimizer, "momentum"), rising(optimizer, "weight_decay")

    @trainer.on(Events.ITERATION_COMPLETED)
    def change(engine):
        schedule(engine)
        other(engine)


@pytest.mark.parametrize("attach", [alone, in_a_part, two_by_a_function], ids=lambda attach: attach.__name__)
@pytest.mark.parametrize("compiled_ahead", [False, True])
def test_what_a_schedule_raises_from_zero_is_variable(attach, compiled_ahead):
    """Weights are those of Ignite's own engine, though a momentum and a decay of zero are constants otherwise.

    So are those of the program for the smaller last batch.
    """
    weights = []
    for create in (functools.partial(create_ipu_trainer, drop_last=False), create_supervised_trainer):
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = create(model, optimizer, nn.CrossEntropyLoss())
        attach(trainer, optimizer)
        loader = DataLoader(task(60), batch_size=8)
        if create is not create_supervised_trainer and compiled_ahead:
            trainer.compile(loader)
        trainer.run(loader, max_epochs=2)
        weights.append(model.weight.detach().clone())
        if create is not create_supervised_trainer:
            assert trainer.ipu.link.conversion.receipt["schedule of momentum"].on_device == "variable"
            trainer.ipu.close()
    torch.testing.assert_close(*weights)


def test_a_schedule_of_another_optimizer_changes_nothing(made):
    trainer, _, loader = made
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    trainer.add_event_handler(Events.ITERATION_STARTED, rising(other, "weight_decay"))
    trainer.run(loader)
    assert "weight_decay" in trainer.ipu.link.conversion.constant


def test_a_last_call_of_fewer_updates_is_counted(made):
    trainer, optimizer, _ = made
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), device_iterations=4, drop_last=False)
    by_update(trainer, optimizer)
    rows = trainer.learning_rates(DataLoader(task(44), batch_size=4), 1).rows
    assert [(row.first_update, row.last_update) for row in rows] == [(1, 4), (5, 8), (9, 11)]


def test_a_function_that_does_more_is_left_to_the_run(made):
    """It is not called, and named; so is a schedule by a metric."""
    trainer, optimizer, loader = made
    schedule, called = lr_scheduler.ExponentialLR(optimizer, 0.7), []

    def advance_and_note():
        called.append(1)
        schedule.step()

    trainer.add_event_handler(Events.EPOCH_COMPLETED, advance_and_note)
    planned = trainer.learning_rates(loader, EPOCHS)
    assert not called and len({row.rates for row in planned.rows}) == 1
    assert "Only a run shows the effect of these handlers: " in str(planned) and "advance_and_note" in str(planned)


def test_the_table_has_iterations_updates_and_turns(made):
    trainer, optimizer, loader = made
    by_update(trainer, optimizer)
    text = trainer.explain(loader, max_epochs=30)
    assert text.startswith("IPUSession") and "\niteration  updates" in text
    planned = trainer.learning_rates(loader, 30)
    lines = str(planned).splitlines()
    assert lines[1].split()[:2] == ["1", "1-2"] and lines[-2].split()[:2] == ["120", "239-240"]
    assert len(lines) < 40 and "120 iterations" in lines[-1]


def test_the_picture_has_a_step_for_every_call(made):
    pytest.importorskip("matplotlib")
    trainer, optimizer, loader = made
    by_update(trainer, optimizer)
    (axes,) = trainer.learning_rates(loader, EPOCHS).draw().axes
    (first, _) = axes.patches
    values, edges, _ = first.get_data()
    assert list(edges) == list(range(0, 26, 2))
    assert list(values[:4]) == pytest.approx([0.1, 0.0125, 0.0375, 0.0625])
    assert axes.get_xlabel() == "weight update"


def test_data_without_a_length_is_refused(made):
    trainer, _, _ = made
    with pytest.raises(LoaderError, match="has no length"):
        trainer.learning_rates(iter([task()[:16]]), 1)
