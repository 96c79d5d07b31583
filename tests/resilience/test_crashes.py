"""Killed, preempted, and out of disk: files on the disk stay whole, and the run goes on as if nothing had been."""

from __future__ import annotations

import errno
import os
import resource
import signal
import time

import pytest
import torch
from ignite.engine import Events

from ignite_ipu.checkpoints import (
    CheckpointError,
    CheckpointSaver,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from ignite_ipu.handlers import Preemption, Recovery
from ignite_ipu.handlers.recovery.decisions import EXIT_PREEMPTED
from tests.resilience.children import Child
from tests.resilience.crashes import killed_while_migrating, killed_while_training, preempted
from tests.resilience.training import Run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the children are forked")


def test_a_killed_run_goes_on():
    """SIGKILL while training, evaluating and saving: the resumed run ends with the same bits."""
    assert sum(killed_while_training(5).values()) == 5


def test_a_preempted_run_saves_and_goes_on():
    """SIGTERM ends a run with code 75, in the middle of an epoch too; no step is lost or made twice."""
    assert sum(preempted(3).values()) >= 3


def test_a_killed_migration_leaves_whole_files():
    """Every file is the old one or the new one, and migrating again completes."""
    assert sum(killed_while_migrating(2, files=3).values()) == 2


def test_a_grace_period_that_an_iteration_outlasts(tmp_path):
    """The newest snapshot is saved from memory, in time."""

    def work(note):
        run = Run(note)
        recovery = Recovery(tmp_path, run.others, every=1)
        recovery.attach(run.trainer)
        Preemption(recovery, grace=0.5).attach(run.trainer)

        @run.trainer.on(Events.ITERATION_COMPLETED(once=3))
        def outlast():
            note("evaluate")
            time.sleep(60)

        run.train()

    child = Child(work)
    assert child.wait_for("evaluate")
    child.kill(signal.SIGTERM)
    started = time.monotonic()
    assert child.wait() == EXIT_PREEMPTED
    assert time.monotonic() - started < 50  # the iteration takes a minute
    assert read_checkpoint(tmp_path / "recovery_2.pt")["trainer"]["iteration"] == 2


def test_a_full_disk_leaves_the_previous_checkpoint(tmp_path):
    """If the system refuses a write, the message has the reason, and the previous file is still whole."""
    path = tmp_path / "checkpoint_1.pt"
    write_checkpoint(path, {"x": torch.arange(10)})
    before = path.read_bytes()

    def fill(note):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        with pytest.raises(CheckpointError, match=r"was not written.*The file that was there before is intact"):
            write_checkpoint(path, {"x": torch.zeros(100_000)})

    assert Child(fill).wait() == 0
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["checkpoint_1.pt"]


@pytest.mark.parametrize(("number", "advice"), [(errno.ENOSPC, "free some"), (errno.EIO, "can be written to")])
def test_an_error_at_the_very_end_of_writing(tmp_path, monkeypatch, number, advice):
    """A disk may complain only when it is asked to have everything."""
    path = tmp_path / "checkpoint_1.pt"
    write_checkpoint(path, {"x": 1})

    def refuse(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CheckpointError, match=f"{os.strerror(number)}.*intact.*{advice}"):
        write_checkpoint(path, {"x": 2})
    assert read_checkpoint(path) == {"x": 1}
    assert os.listdir(tmp_path) == ["checkpoint_1.pt"]


def test_a_folder_that_cannot_be_written(tmp_path):
    """A read-only folder is refused with its name when the saver is made or at the first checkpoint."""
    folder = tmp_path / "file"
    folder.write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written to .*file.*Choose another folder"):
        CheckpointSaver(folder / "inside")
    locked = tmp_path / "locked"
    locked.mkdir()
    write_checkpoint(locked / "a_1.pt", {"x": 1})
    os.chmod(tmp_path, 0o755)
    locked.chmod(0o555)

    def write(note):
        if os.getuid() == 0:
            os.setuid(65534)  # permissions mean nothing to root
        with pytest.raises(CheckpointError, match=r"was not written: Permission denied.*are intact"):
            write_checkpoint(locked / "a_2.pt", {"x": 2})

    for parent in [tmp_path, *tmp_path.parents][:-2]:
        os.chmod(parent, 0o755)
    assert Child(write).wait() == 0
    locked.chmod(0o755)
    assert newest_checkpoint(locked) == locked / "a_1.pt"


def test_killed_while_a_slow_disk_writes(tmp_path):
    """The previous checkpoint is still the newest complete one, and the next saver clears the rest away."""
    write_checkpoint(tmp_path / "a_1.pt", {"x": 1})

    def write(note):
        def slow(descriptor):
            note("checkpoint")
            time.sleep(60)

        os.fsync = slow
        write_checkpoint(tmp_path / "a_2.pt", {"x": 2})

    child = Child(write)
    assert child.wait_for("checkpoint")
    child.kill()
    child.wait()
    assert len(os.listdir(tmp_path)) == 2
    assert newest_checkpoint(tmp_path) == tmp_path / "a_1.pt"
    CheckpointSaver(tmp_path)
    assert os.listdir(tmp_path) == ["a_1.pt"]
