"""Refusals show the user's own frames, in every way into the library; a variable shows all."""

from __future__ import annotations

import traceback

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ignite_ipu import backend, create_ipu_evaluator, create_ipu_trainer, ipu_prepare
from ignite_ipu.errors import IPUError
from ignite_ipu.program.refusal_frames import DEBUG, brief_refusals, keep_frames
from tests.supervised import task


class Deciding(nn.Linear):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


def trained(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def by_a_trainer():
    model = Deciding(6, 3)
    create_ipu_trainer(model, trained(model), nn.CrossEntropyLoss()).run(DataLoader(task(), batch_size=8))


def by_an_evaluator():
    create_ipu_evaluator(Deciding(6, 3)).run(DataLoader(task(), batch_size=8))


def by_a_step():
    model = Deciding(6, 3)
    optimizer = ipu_prepare(trained(model), model)
    F.cross_entropy(model(task()[:8][0]), task()[:8][1]).backward()
    optimizer.step()


def by_a_call():
    model = Deciding(6, 3)
    ipu_prepare(trained(model), model)
    with torch.no_grad():
        model.eval()(task()[:8][0])


def by_a_factory():
    model = nn.Linear(6, 3)
    create_ipu_trainer(model, torch.optim.LBFGS(model.parameters()), nn.CrossEntropyLoss())


WAYS = [by_a_trainer, by_an_evaluator, by_a_step, by_a_call, by_a_factory]
DECIDES_IN_FORWARD = {by_a_trainer, by_an_evaluator, by_a_step, by_a_call}


def refused(way):
    """Return the frames of a refusal below its test, and all lines that Python would print."""
    with pytest.raises((IPUError, backend.poptorch().Error)) as caught:
        way()
    error = caught.value
    frames = traceback.extract_tb(error.__traceback__)
    start = next(i for i, frame in enumerate(frames) if frame.name == way.__name__)
    return frames[start:], "".join(traceback.format_exception(type(error), error, error.__traceback__))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_only_the_users_frames_are_shown(way, monkeypatch):
    """With a single one of the library's, where they come in; the line in forward that is at fault is among them."""
    monkeypatch.delenv(DEBUG, raising=False)
    frames, printed = refused(way)
    own = [frame for frame in frames if frame.filename == __file__]
    assert len(frames) == len(own) + 1 and frames[1].filename.endswith("refusal_frames.py")
    assert (own[-1].name == "forward") == (way in DECIDES_IN_FORWARD)
    assert printed.count("\n  File ") < 10 and "During handling" not in printed


@pytest.mark.parametrize("way", [by_a_trainer, by_a_step], ids=lambda way: way.__name__)
def test_all_frames_on_demand(way, monkeypatch):
    """By the variable, or for a display that leaves frames out by itself."""
    monkeypatch.setenv(DEBUG, "1")
    assert len(refused(way)[0]) > 10
    monkeypatch.setenv(DEBUG, "0")
    keep_frames(True)
    try:
        assert len(refused(way)[0]) > 10
    finally:
        keep_frames(False)


def test_errors_of_the_user_are_left_alone(monkeypatch):
    """Also their causes and contexts."""
    monkeypatch.delenv(DEBUG, raising=False)

    @brief_refusals
    def enter():
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904 # the test is about the context

    with pytest.raises(ValueError, match="second") as caught:
        enter()
    assert isinstance(caught.value.__context__, KeyError) and not caught.value.__suppress_context__
    assert not getattr(caught.value, "__notes__", ())


def test_a_cause_is_shown_with_its_users_frames(monkeypatch):
    monkeypatch.delenv(DEBUG, raising=False)

    @brief_refusals
    def enter():
        try:
            raise KeyError("first")
        except KeyError as error:
            raise IPUError("refused") from error

    with pytest.raises(IPUError, match="refused") as caught:
        enter()
    assert isinstance(caught.value.__cause__, KeyError)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)] == ["enter"]
