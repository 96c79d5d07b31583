"""Processes killed at random moments: their files are whole, and the run goes on as if nothing had been."""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

from ignite_ipu.checkpoints import check_complete, newest_checkpoint
from ignite_ipu.handlers import Preemption, Recovery
from ignite_ipu.handlers.recovery.decisions import EXIT_PREEMPTED
from ignite_ipu.migration.commands import migrate as migrate_command
from ignite_ipu.migration.rewrites import all_rewrites
from tests.resilience.children import Child, kill_somewhere
from tests.resilience.training import Run, read_result, write_result

EPOCHS = 2
CORPUS = Path(__file__).parents[1] / "migration" / "corpus"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def train_with_checkpoints(folder: Path, note: Callable[[str], None]) -> None:
    """The children's program: the one that a user starts again after a crash."""
    run = Run(note)
    run.checkpoint(folder)
    run.resume(folder)
    run.train(EPOCHS)
    run.note("start")
    write_result(folder, run.result())
    run.note("done")


def uninterrupted(work: Callable[[Path, Callable[[str], None]], None]) -> Dict[str, Any]:
    with scratch() as folder:
        assert Child(lambda note: work(folder, note)).wait() == 0
        return read_result(folder)


def killed_while_training(kills: int, seed: int = 0) -> Dict[str, int]:
    """Kill and restart runs until there were so many kills; returns how many hit each phase."""
    drawn = random.Random(seed)
    expected = uninterrupted(train_with_checkpoints)
    killed: Dict[str, int] = {}
    while sum(killed.values()) < kills:
        with scratch() as folder:
            for _ in range(8):
                child = Child(lambda note, folder=folder: train_with_checkpoints(folder, note))
                if not kill_somewhere(child, drawn, ("train", "evaluate", "checkpoint"), killed):
                    break
                for path in folder.glob("*.pt"):
                    check_complete(path)
                if sum(killed.values()) >= kills:
                    break
            if child.wait() != 0:
                assert Child(lambda note, folder=folder: train_with_checkpoints(folder, note)).wait() == 0
            assert read_result(folder) == expected, f"after {killed} the resumed run is another"
            assert not list(folder.glob(".*.tmp")), "a resumed run leaves unfinished files"
    return killed


def train_preemptibly(folder: Path, note: Callable[[str], None]) -> None:
    run = Run(note)
    recovery = Recovery(folder, run.others, every=3, resume="auto")
    recovery.attach(run.trainer)
    Preemption(recovery, grace=5.0).attach(run.trainer)
    run.train(EPOCHS)
    write_result(folder, run.result())
    run.note("done")


def preempted(terms: int, seed: int = 0) -> Dict[str, int]:
    """Interrupt runs a number of times; returns how many were in each phase."""
    drawn = random.Random(seed)
    expected = uninterrupted(train_preemptibly)
    asked: Dict[str, int] = {}
    while sum(asked.values()) < terms:
        with scratch() as folder:
            for _ in range(4):
                child = Child(lambda note, folder=folder: train_preemptibly(folder, note))
                if not child.wait_for(drawn.choice(["train", "evaluate"])):
                    break
                time.sleep(drawn.random() * 0.02)
                phase, started = child.phase, time.monotonic()
                if phase == "done" or child.ended:
                    break
                child.kill(signal.SIGTERM)
                code = child.wait()
                if code in (0, -signal.SIGTERM):
                    break  # it had finished its training
                assert code == EXIT_PREEMPTED, code
                assert time.monotonic() - started < 5.0
                asked[phase] = asked.get(phase, 0) + 1
                newest = newest_checkpoint(folder)
                assert newest is None or newest.name.startswith("recovery_")
            if not (folder / "result.json").exists():
                assert Child(lambda note, folder=folder: train_preemptibly(folder, note)).wait() == 0
            assert read_result(folder) == expected, f"after {asked} the resumed run is another"
    return asked


def killed_while_migrating(kills: int, seed: int = 0, files: int = 6) -> Dict[str, int]:
    """Kill `ignite-ipu migrate --in-place`; every file is the old one or the new one, and a second run completes."""
    drawn = random.Random(seed)
    all_rewrites()  # imported once here, not in every child
    names = [path.name for path in sorted(CORPUS.glob("*.py"), key=lambda path: path.stat().st_size)[:files]]
    old = {name: (CORPUS / name).read_bytes() for name in names}
    with scratch() as folder:
        _copy(old, folder)
        assert Child(lambda note: _migrate(folder, note)).wait() in (0, 1)
        new = {name: (folder / name).read_bytes() for name in names}
    killed: Dict[str, int] = {}
    while sum(killed.values()) < kills:
        with scratch() as folder:
            _copy(old, folder)
            child = Child(lambda note, folder=folder: _migrate(folder, note))
            child.wait_for("migrate")
            time.sleep(drawn.random() * 1.2)
            if not child.ended:
                child.kill()
                killed["migrate"] = killed.get("migrate", 0) + (child.wait() == -signal.SIGKILL)
            for name in names:
                assert (folder / name).read_bytes() in (old[name], new[name]), f"{name} is neither old nor new"
            assert Child(lambda note, folder=folder: _migrate(folder, note)).wait() in (0, 1)
            assert {name: (folder / name).read_bytes() for name in names} == new
    return killed


def _copy(files: Dict[str, bytes], folder: Path) -> None:
    for name in files:
        shutil.copy(CORPUS / name, folder / name)


def _migrate(folder: Path, note: Callable[[str], None]) -> None:
    note("migrate")
    parser = argparse.ArgumentParser()
    migrate_command.add_arguments(parser)
    raise SystemExit(migrate_command.main(parser.parse_args(["--in-place", str(folder)])))
