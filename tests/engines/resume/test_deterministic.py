"""`deterministic=True`: a run that was saved goes on, from the files that Ignite's savers and this library's write."""

from __future__ import annotations

import itertools
import random
import shutil

import numpy as np
import pytest
import torch
from ignite.engine import Events
from ignite.engine.deterministic import DeterministicEngine
from ignite.handlers import Checkpoint, DiskSaver
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ignite_ipu import create_ipu_trainer
from ignite_ipu.checkpoints import CheckpointSaver, resume_from
from ignite_ipu.handlers import Recovery
from tests.supervised import assert_same_weights, pair


class Noisy(Dataset):
    """Every sample is augmented with numbers from all three generators."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        noise = torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])
        return torch.cat([torch.full((3,), index / 24), noise]), index % 3


def train(folder, resume=lambda objects, folder: None, saver=DiskSaver, stop=None, draws=0):
    """Return the model and the batches of a deterministic run that saves itself every second iteration.

    Before it runs, the host draws some numbers.
    """
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    model, optimizer = pair(momentum=0.9)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss(), deterministic=True)
    objects = {"model": model, "optimizer": optimizer, "trainer": trainer}
    batches = {}
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: batches.update({trainer.state.iteration: trainer.state.batch[0].tolist()})
    )
    checkpoint = Checkpoint(objects, saver(folder), n_saved=None)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), checkpoint)
    if stop is not None:
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop), trainer.terminate)
    resume(objects, folder)
    torch.rand(draws)
    trainer.run(DataLoader(Noisy(), batch_size=4, shuffle=True), max_epochs=3)
    return model, batches


def newest(objects, folder):
    assert resume_from(folder, objects) is not None


def automatically(objects, folder):
    assert Recovery(folder, resume="auto").attach(objects["trainer"]) is not None


def as_weights_only(objects, folder):
    file = max(folder.glob("*.pt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    Checkpoint.load_objects(objects, torch.load(file, weights_only=True))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole"), saver=CheckpointSaver)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, request):
    """Return the folder and the batches of a run that was stopped, with its saver and the iteration."""
    saver, stop = request.param
    folder = tmp_path_factory.mktemp("stopped")
    return stop, folder, train(folder, saver=saver, stop=stop)[1]


@pytest.mark.parametrize("stopped", list(itertools.product([DiskSaver, CheckpointSaver], [6, 8])), indirect=True)
@pytest.mark.parametrize("resume", [newest, automatically, as_weights_only])
def test_a_saved_run_goes_on(stopped, uninterrupted, resume, tmp_path):
    """With the batches and the weights of the uninterrupted one, from within an epoch and from its end."""
    stop, folder, before = stopped
    whole, expected = uninterrupted
    shutil.copytree(folder, tmp_path / "parts")
    resumed, after = train(tmp_path / "parts", resume, saver=CheckpointSaver)
    assert min(after) == stop + 1
    assert {**before, **after} == expected
    assert_same_weights(resumed, whole, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("stop", [6, 8])
def test_numbers_drawn_before_a_resume_change_nothing(stop, tmp_path):
    """The order of the data follows the seed of the run that was saved."""
    _, expected = train(tmp_path / "whole", draws=3, saver=CheckpointSaver)
    (tmp_path / "parts").mkdir()
    _, before = train(tmp_path / "parts", saver=CheckpointSaver, stop=stop, draws=3)
    _, after = train(tmp_path / "parts", newest, saver=CheckpointSaver, draws=5)
    assert {**before, **after} == expected


def test_ignites_own_engine_goes_on_with_it(tmp_path):
    """The random states are in its form: numbers that it draws within an epoch are those that were to come."""
    train(tmp_path, saver=CheckpointSaver, stop=8)
    drawn = random.random(), np.random.rand(), float(torch.rand(()))
    saved = torch.load(tmp_path / "checkpoint_8.pt", weights_only=True)["trainer"]
    random.seed(0)
    seen = []

    def step(engine, batch):
        seen.append((random.random(), np.random.rand(), float(torch.rand(()))))

    engine = DeterministicEngine(step)
    engine.load_state_dict({name: value for name, value in saved.items() if name != "ipu"})
    engine.run([0] * 6, max_epochs=3)
    assert seen[0] == drawn
