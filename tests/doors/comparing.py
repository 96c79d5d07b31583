"""Takes a script through each door and compares the results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, NamedTuple

import pytest

from ignite_ipu.migration.checker import judge_source
from ignite_ipu.migration.migrator import migrate_source
from ignite_ipu.migration.source.file import read_source
from ignite_ipu.migration.verdict import Verdict
from tests.doors.loops import ON_HOST
from tests.running.test_corpus import OLDER_TOLERANCE, TOLERANCE
from tests.scripts import RUN, Ran, Scripts

CORPUS = Path(__file__).parents[1] / "migration" / "corpus"
EXAMPLES = Path(__file__).parents[2] / "examples"
# The last line of the traceback of an error of this library.
_REFUSAL = re.compile(r"^ignite_ipu[\w.]*Error: ", re.MULTILINE)


class Outcome(NamedTuple):
    """The results of a script behind one door."""

    verdict: Verdict
    numbers: List[float]
    error: str

    @classmethod
    def of(cls, ran: Ran) -> Outcome:
        if ran.error.startswith("refused") or _REFUSAL.search(ran.error) is not None:
            return cls(Verdict.REFUSED, [], ran.error)
        if ran.error:
            return cls(Verdict.NOTHING, [], ran.error)
        trained = Verdict.TRAINS if ran.updates else Verdict.NOTHING
        verdict = Verdict.TRAINS_ON_HOST if ON_HOST in ran.messages else trained
        return cls(verdict, _numbers_of(ran), "")


def _numbers_of(ran: Ran) -> List[float]:
    """Return the numbers in a script's result; none of an example, which checks its numbers itself."""
    assert not ran.error, ran.error
    return [] if ran.result is None else ran.numbers


def outcomes(path: Path, scripts: Scripts, folder: Path) -> Dict[str, Outcome]:
    """Return the results of a script behind each door, in the scripts' process; copies go into a folder."""
    text = path.read_text(encoding="utf-8")
    texts = {"auto": with_import(text)}
    found = {"run": Outcome.of(scripts.run(path, RUN))}
    migration = migrate_source(read_source(path))
    if migration.blocked:
        found["migrate"] = Outcome(Verdict.REFUSED, [], migration.reason)
    else:
        texts["migrate"] = migration.text
    for door, written in texts.items():
        copy = folder / door / path.name
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(written, encoding="utf-8")
        found[door] = Outcome.of(scripts.run(copy, "emulator"))
    return found


def with_import(text: str) -> str:
    """Return a script with the import line in front of its first import, behind those of `__future__`."""
    lines = text.splitlines(keepends=True)
    of_future = [number for number, line in enumerate(lines, 1) if line.startswith("from __future__")]
    place = max(of_future, default=0)
    return "".join([*lines[:place], "import ignite_ipu.auto\n", *lines[place:]])


def differences(path: Path, scripts: Scripts, folder: Path) -> List[str]:
    """Return the differences between the doors, and from the numbers of the native run; empty if there are none."""
    native = _numbers_of(scripts.run(path, "native"))
    expected = judge_source(read_source(path))[2].verdict
    tolerance = max(TOLERANCE.get(path.stem, (1e-4, ""))[0], OLDER_TOLERANCE.get(path.stem, 0))
    return compared(outcomes(path, scripts, folder), expected, native, tolerance)


def compared(found: Dict[str, Outcome], expected: Verdict, native: List[float], tolerance: float) -> List[str]:
    """Return the differences between doors, from the verdict of `check`, and from the numbers of the native run."""
    different = [
        f"{door}: `check` says that `run` {expected.value}, and it {each.verdict.value}: {each.error[-300:]}"
        for door, each in found.items()
        if each.verdict is not expected
    ]
    for door, each in found.items():
        trained = each.verdict in (Verdict.TRAINS, Verdict.TRAINS_ON_HOST)
        if trained and each.numbers != pytest.approx(native, rel=tolerance, abs=1e-6):
            different.append(f"{door}: {each.numbers} instead of {native}")
    return different
