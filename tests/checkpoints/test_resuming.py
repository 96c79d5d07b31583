"""Going on from a checkpoint: from the one that was named, with everything in it or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ignite_ipu.checkpoints import CheckpointError, resume_from, write_checkpoint


class Counter:
    """An object of a run, whose state is a number."""

    def __init__(self, value=0):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Interrupted(Counter):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        if state["value"]:
            raise self.error


@pytest.mark.parametrize(("error", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(), CheckpointError)])
def test_what_is_interrupted_loads_nothing(tmp_path, error, raised):
    """Ctrl-C stays Ctrl-C; an error is one of the checkpoint."""
    write_checkpoint(tmp_path / "last.pt", {"first": {"value": 7}, "second": {"value": 8}})
    objects = {"first": Counter(), "second": Interrupted()}
    objects["second"].error = error
    with pytest.raises(raised):
        resume_from(tmp_path, objects)
    assert (objects["first"].value, objects["second"].value) == (0, 0)


def test_a_named_checkpoint_may_be_in_the_users_home(tmp_path, monkeypatch):
    """As the folder may."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write_checkpoint(tmp_path / "runs" / "last.pt", {"first": {"value": 7}})
    for resume in ("auto", "~/runs/last.pt", Path("~/runs/last.pt")):
        counter = Counter()
        assert resume_from("~/runs", {"first": counter}, resume) == tmp_path / "runs" / "last.pt"
        assert counter.value == 7


def test_a_named_checkpoint_that_is_not_there_is_refused(tmp_path):
    """It is an error of the checkpoint, like all that keeps a run from going on."""
    with pytest.raises(CheckpointError, match=r"lost\.pt cannot be read, .*No such file.*Name a checkpoint"):
        resume_from(tmp_path, {"first": Counter()}, tmp_path / "lost.pt")
