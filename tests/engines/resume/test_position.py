"""A run that is resumed within an epoch gets the batches, and the random numbers, that the uninterrupted one gets."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from ignite.engine import Events
from ignite.metrics import Average
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ignite_ipu import create_ipu_trainer
from ignite_ipu.checkpoints.comparable import comparable
from ignite_ipu.checkpoints.random_states import read_random_states, write_random_states
from ignite_ipu.errors import LoaderError
from tests.supervised import pair


class Noisy(Dataset):
    """Every sample is augmented with numbers from all three generators."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        noise = torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])
        return torch.cat([torch.full((3,), float(index)), noise]), index % 3


def losses_of(stop=None, state=None, epochs=2, epoch_length=None, generator=False, workers=0, **how):
    """Return the losses of each iteration and the trainer's state when it was stopped."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    model, optimizer = pair()
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), **how)
    own = torch.Generator().manual_seed(7) if generator else None
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=own, num_workers=workers)
    seen = {}
    saved = {}
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: seen.update({trainer.state.iteration: trainer.state.batch[0].sum().item()})
    )
    if stop is not None:

        def interrupt():
            saved.update(trainer.state_dict())
            trainer.terminate()

        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop), interrupt)
    if state is not None:
        trainer.load_state_dict(state)
    trainer.run(loader, max_epochs=epochs, epoch_length=epoch_length)
    trainer.ipu.close()
    return seen, saved


def logged(state=None, save_at=(), **how):
    """Return a trainer that goes on from a state, its loader, its log, and its states at some events."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(
        model, optimizer, nn.CrossEntropyLoss(), output_transform=lambda x, y, y_pred, loss: x.sum().item(), **how
    )
    Average().attach(trainer, "mean")
    log, saved = [], []

    def note(engine):
        now = engine.state
        log.append((now.epoch, now.iteration, now.weight_updates, now.samples, now.output, dict(now.metrics)))

    trainer.add_event_handler(Events.ITERATION_COMPLETED, note)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, note)
    for event in save_at:
        trainer.add_event_handler(event, lambda: saved.append((len(log), trainer.state_dict())))
    if state is not None:
        trainer.load_state_dict(state)
    return trainer, DataLoader(Noisy(), batch_size=4, shuffle=True), log, saved


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_run_can_be_resumed_at_any_event_and_saved_again_before_it_goes_on(deterministic):
    """A job that is queued again before its first iteration saves the state that it has loaded.

    The host draws other numbers in between. Each run goes on with the batches, counts and metrics of the first one.
    """
    events = (Events.STARTED, Events.ITERATION_COMPLETED, Events.EPOCH_COMPLETED(once=1))
    trainer, loader, whole, states = logged(save_at=events, deterministic=deterministic)
    trainer.run(loader, max_epochs=2)
    assert len(states) == 14 and whole[-1][:4] == (2, 12, 12, 48)
    for past, state in states:
        torch.rand(3)
        queued, *_ = logged(state, deterministic=deterministic)
        again = queued.state_dict()
        assert comparable(again) == comparable(state)

        started, loader, *_, saved = logged(again, [Events.STARTED], deterministic=deterministic)
        started.add_event_handler(Events.STARTED, started.terminate)
        started.run(loader, max_epochs=2)
        assert comparable(saved[0][1]) == comparable(state)

        last, loader, log, _ = logged(saved[0][1], deterministic=deterministic)
        last.run(loader, max_epochs=2)
        assert log == whole[past:]


def test_a_state_waits_for_a_run_that_starts():
    """Data that is refused leaves it as it is; a run that begins anew leaves it out."""
    trainer, loader, whole, states = logged(save_at=[Events.ITERATION_COMPLETED(once=8)])
    trainer.run(loader, max_epochs=2)
    ((past, state),) = states
    again, loader, log, _ = logged(state)
    with pytest.raises(LoaderError):
        again.run(DataLoader(Noisy(), batch_size=4, sampler=[]), max_epochs=2)
    again.run(loader, max_epochs=2)
    assert log == whole[past:]
    again.load_state_dict(state)
    again.state.max_epochs = None
    again.run(loader, max_epochs=1)
    assert [line[:4] for line in log[-7:]] == [line[:4] for line in whole[:7]]


@pytest.mark.parametrize("epoch_length", [4, 9])
def test_epochs_that_are_no_pass_over_the_data(epoch_length):
    """Ignite goes on with the same pass in the next epoch, or starts another within one, where a run may stop."""
    whole, _ = losses_of(epoch_length=epoch_length)
    for stop in (3, 5, 6, 7):
        before, state = losses_of(stop, epoch_length=epoch_length)
        assert {**before, **losses_of(state=state, epoch_length=epoch_length)[0]} == whole


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("epoch_length", [None, 4, 9])
def test_a_loaders_own_generator_is_restored(epoch_length, workers):
    """Within a pass over the data and between two, so that no shuffle comes twice."""
    settings = {"generator": True, "epoch_length": epoch_length, "workers": workers}
    whole, _ = losses_of(**settings)
    for stop in (4, 6, 8) if not workers else (6,):
        before, state = losses_of(stop, **settings)
        assert {**before, **losses_of(state=state, **settings)[0]} == whole


@pytest.mark.parametrize("epoch_length", [None, 4, 9])
def test_a_loaders_own_generator_is_restored_in_deterministic_runs(epoch_length):
    """These seed the host at every start of the data, and leave the loader's generator alone, as Ignite's do."""
    settings = {"generator": True, "epoch_length": epoch_length, "deterministic": True, "epochs": 3}
    whole = losses_of(**settings)[0]
    for stop in (4, 6, 8, 12):
        before, state = losses_of(stop, **settings)
        assert {**before, **losses_of(state=state, **settings)[0]} == whole


def test_an_evaluation_may_draw_from_the_generator_after_the_checkpoint(caplog):
    """The next epoch starts from the generator of the checkpoint, in the run that saved it and in the resumed one.

    That is not where Ignite's engine would start it, of which one line tells.
    """

    def batches_of(state=None):
        generator = torch.Generator().manual_seed(7)
        loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=generator)
        trainer, seen, saved = create_ipu_trainer(*pair(), nn.CrossEntropyLoss()), {}, []
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda: seen.update({trainer.state.iteration: trainer.state.batch[0][:, 0]})
        )
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: saved.append(trainer.state_dict()))
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: list(loader))
        if state is not None:
            trainer.load_state_dict(state)
        trainer.run(loader, max_epochs=2)
        return {iteration: batch.tolist() for iteration, batch in seen.items()}, saved

    whole, saved = batches_of()
    (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "taken at the end of epoch 1" in warned and "Attach the handler that saves the state" in warned
    resumed, _ = batches_of(saved[0])
    assert resumed == {iteration: whole[iteration] for iteration in range(7, 13)}


def test_a_finished_run_stays_finished():
    """Loaded from its end, it does nothing, instead of training all over from the trained weights."""
    _, state = losses_of(12)
    assert losses_of(state=state)[0] == {}
    assert sorted(losses_of(state=state, epochs=3)[0]) == list(range(13, 19))


def test_random_states_are_plain_data(tmp_path):
    """They go through a file that is read without unpickling objects."""
    states = read_random_states()
    drawn = random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3)
    torch.save(states, tmp_path / "states.pt")
    write_random_states(torch.load(tmp_path / "states.pt", weights_only=True))
    again = random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3)
    assert drawn[:4] == again[:4] and torch.equal(drawn[4], again[4])
