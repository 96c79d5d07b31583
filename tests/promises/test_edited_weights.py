"""Writes of handlers into weights are kept, at any time and however the run goes on: as in Ignite."""

from __future__ import annotations

import itertools

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.handlers import Recovery
from tests.supervised import assert_same_weights, task

LOADER = DataLoader(task(), batch_size=16)  # four calls in an epoch


def network():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.5), nn.ReLU(), nn.Linear(8, 3))
    model[1].num_batches_tracked = None  # PopTorch does not count
    return model


def clamp(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.2, 0.2)


def initialise(model):
    nn.init.constant_(model[0].weight, 0.07)


def scale_a_buffer(model):
    model[1].running_mean.mul_(3.0).add_(1.0)


def write_through_data(model):
    model[3].weight.data.mul_(0.3)


def write_through_detach(model):
    model[3].weight.detach().mul_(0.3)


def load(model):
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()}, strict=False)


def load_a_part(model):
    model[3].load_state_dict({name: value * 0.5 for name, value in model[3].state_dict().items()})


EDITS = [clamp, initialise, scale_a_buffer, write_through_data, write_through_detach, load, load_a_part]


def end_by_itself(trainer):
    trainer.run(LOADER, max_epochs=2)
    trainer.run(LOADER, max_epochs=3)


def end_by_terminate(trainer):
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=6), trainer.terminate)
    trainer.run(LOADER, max_epochs=2)
    trainer.run(LOADER, max_epochs=3)


def end_by_interrupt(trainer):
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=6), trainer.interrupt)
    trainer.run(LOADER, max_epochs=2)
    trainer.run(LOADER, max_epochs=2)


def trained(create, edit, event, run=end_by_itself, before=lambda trainer: None):
    """Return the model that a trainer has trained whose handler edits it."""
    model = network()
    trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), nn.CrossEntropyLoss())
    before(trainer)
    trainer.add_event_handler(event, lambda engine: edit(model))
    run(trainer)
    return model, trainer


@pytest.mark.parametrize("event", [Events.EPOCH_COMPLETED, Events.ITERATION_COMPLETED(once=8)])
@pytest.mark.parametrize("edit", EDITS)
def test_the_last_edit_of_a_run_is_in_the_next_one(edit, event):
    """Bringing the newest weights to the host at the end of a run does not take writes on the host as uploaded."""
    native, _ = trained(create_supervised_trainer, edit, event)
    ipu, _ = trained(create_ipu_trainer, edit, event)
    assert_same_weights(ipu, native, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("run", "event"),
    [
        (end_by_terminate, Events.TERMINATE),
        (end_by_terminate, Events.COMPLETED),
        (end_by_terminate, Events.ITERATION_COMPLETED(once=6)),
        (end_by_interrupt, Events.INTERRUPT),
        (end_by_interrupt, Events.ITERATION_COMPLETED(once=6)),
    ],
)
def test_a_run_that_was_ended_early_keeps_its_edits(run, event):
    """Whatever ends it."""
    native, _ = trained(create_supervised_trainer, clamp, event, run)
    ipu, _ = trained(create_ipu_trainer, clamp, event, run)
    assert_same_weights(ipu, native, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("event", [Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED])
@pytest.mark.parametrize("edit", [clamp, scale_a_buffer])
def test_snapshots_keep_edits(edit, event, tmp_path):
    """A `Recovery` that copies the weights after every call loses no writes of handlers in between."""
    native, _ = trained(create_supervised_trainer, edit, event)
    guard = Recovery(tmp_path, every=1)
    ipu, _ = trained(create_ipu_trainer, edit, event, before=guard.attach)
    assert_same_weights(ipu, native, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("event", [Events.EPOCH_COMPLETED, Events.EPOCH_STARTED, Events.STARTED, Events.COMPLETED])
@pytest.mark.parametrize("edit", [clamp, load, scale_a_buffer])
def test_faults_after_an_edit_between_two_epochs_lose_nothing(edit, event, tmp_path):
    """The calls that follow fail, and the copy that takes the edit to the device: bit for bit as without faults."""
    ended = []
    for faults in (
        {},
        {5: poptorch.Fault("IPU_RESET"), 7: poptorch.Fault("IPU_RESET"), 9: poptorch.Fault("IPU_RESET")},
    ):
        guard = Recovery(tmp_path, every=50, backoff=0.0)
        with poptorch.inject_faults(faults):
            model, trainer = trained(create_ipu_trainer, edit, event, before=guard.attach)
        assert trainer.state.recovery.faults == len(faults)
        ended.append(model)
    assert_same_weights(*reversed(ended), rtol=0.0, atol=0.0)


def test_edits_cost_one_copy_each_way():
    """An edit at an epoch's end is one download and one upload; nothing else moves."""
    _, trainer = trained(create_ipu_trainer, clamp, Events.EPOCH_COMPLETED)
    counted = poptorch.counters(trainer.ipu.training.executor)
    assert counted.weight_downloads == 3
    assert counted.weight_uploads == 3  # one with the program, then after the first and the second epoch


def test_a_tensor_from_before_the_run_may_be_written_after_it():
    """It is the weight's memory, in eager PyTorch too, and the host has the newest values then."""
    ended = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        model = network()
        trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), nn.CrossEntropyLoss())
        weight = model[3].weight.detach()
        trainer.run(LOADER)
        weight.mul_(0.5)
        trainer.run(LOADER)
        ended.append(model)
    assert_same_weights(*reversed(ended), rtol=1e-4, atol=1e-5)


def fill_a_weight(model, value):
    with torch.no_grad():
        model[0].weight.fill_(value)


def fill_through_data(model, value):
    model[3].weight.data.fill_(value)


def fill_a_buffer(model, value):
    model[1].running_mean.fill_(value)


def replace_memory(model, value):
    model[1].running_mean.data = torch.full((8,), value)


def outputs_of(create_trainer, create_evaluator, edit, event, trains):
    """Return the outputs of an evaluator whose handler edits the model."""
    model = network()
    if trains:
        create_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()).run(LOADER)
    evaluator, outputs, numbers = create_evaluator(model), [], itertools.count(1)
    evaluator.add_event_handler(event, lambda: edit(model, 0.1 * next(numbers)))
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: outputs.append(evaluator.state.output[0]))
    evaluator.run(LOADER)
    evaluator.run(LOADER)
    return outputs


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("event", [Events.STARTED, Events.ITERATION_STARTED, Events.ITERATION_COMPLETED])
@pytest.mark.parametrize("edit", [fill_a_weight, fill_through_data, fill_a_buffer, replace_memory])
def test_handlers_of_an_evaluation_may_edit_weights(edit, event, trains):
    """The next call has them, as in PyTorch: a moving average that is swapped in, say, with or without a trainer."""
    expected = outputs_of(create_supervised_trainer, create_supervised_evaluator, edit, event, trains)
    found = outputs_of(create_ipu_trainer, create_ipu_evaluator, edit, event, trains)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_edit_outlives_the_fault_of_a_copy(tmp_path):
    """A handler writes, and a copy fails before the next call: of the optimizer's state, say, which it reads then."""

    def trained_with(copies):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
        Recovery(tmp_path, every=50, backoff=0.0).attach(trainer)

        @trainer.on(Events.ITERATION_COMPLETED(every=3))
        def edit():
            clamp(model)
            optimizer.state_dict()

        with poptorch.inject_faults({}, copies=copies):
            trainer.run(LOADER, max_epochs=2)
        return model, trainer.state.recovery.faults

    expected, _ = trained_with({})
    broken = [trained_with({copy: poptorch.Fault("IPU_RESET")}) for copy in range(4, 14)]
    assert sum(faults for _, faults in broken) >= 6
    for model, _ in broken:
        assert_same_weights(model, expected, rtol=0.0, atol=0.0)
