"""Programs of the tests, the examples and the documentation that train natively, for `ignite-ipu parity`.

Those of the corpus have a test each in `test_corpus`. A program of several files is compared in a copy of its folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Iterator, NamedTuple, Tuple

from ignite_ipu.migration.verdict import Verdict
from tests.doors.codebases import PROGRAMS, on_the_host
from tests.examples_page import EXAMPLES, PAIRS
from tests.scripts import PARITY, Ran, Scripts
from tests.test_docs import python_blocks
from tests.test_examples import QUICK

_ROOT = Path(__file__).parents[2]
OF_DEVICES = {
    "ignite_trainer/ipu.py": "reads the trainer's counters of device calls",
    "two_processes/ipu.py": "starts by `ignite-ipu launch` alone",
    "buckets.py": "has handlers of compilations",
    "metrics_on_device.py": "computes averages on the device",
    "mnist_pipeline.py": "places layers on several IPUs",
    "poptorch_loop.py": "calls PopTorch",
    "schedule.py": "has handlers before each update of a device call",
}
"""Examples that do not run natively, and why."""
PAGES_OF_DEVICES = {
    "buckets": "has handlers of compilations",
    "command-line": "asserts the precision of a device",
    "compilation": "compiles before training",
    "concepts": "uses the trainer of a device",
    "configuration": "has the factory clip gradients",
    "emulator": "makes no updates",
    "emulator-tools": "asserts refusals",
    "first-hour": "asserts refusals",
    "handlers": "uses the trainer of a device",
    "loop-values": "prints a value that waits for its update",
    "notebooks": "makes no updates",
    "optimizers": "asserts refusals",
    "options": "uses the options of a device",
    "parity": "compares layers itself",
    "pipeline": "places layers on several IPUs",
    "recovery": "recovers from faults of a device",
    "run": "calls a GPU",
    "schedules": "has handlers before each update of a device call",
}
"""Pages of the documentation whose code does not train natively, and why."""
DIFFERENT = {"gan/train.py": "prints the number of GPUs"}
"""Programs that are different by what a device is, and why."""


class Program(NamedTuple):
    """A script in a folder of files that it needs, with its arguments."""

    folder: Path
    script: str
    arguments: Tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([str((self.folder / self.script).relative_to(_ROOT)), *self.arguments])


def programs() -> Iterator[Program]:
    """Yield all of them but those that a device refuses."""
    for each in PROGRAMS:
        if each.verdict is not Verdict.REFUSED:
            yield Program(each.source / each.codebase, each.script, each.arguments)
    for pair in PAIRS:
        for path in (pair.gpu, pair.ipu):
            if path.suffix == ".py" and f"{pair.folder}/{path.name}" not in OF_DEVICES:
                yield Program(path.parent, path.name, tuple(QUICK.get(pair.folder, ())))
    for path in sorted(EXAMPLES.glob("*.py")):
        if path.name not in OF_DEVICES:
            yield Program(EXAMPLES, path.name, tuple(QUICK.get(path.name, ())))


def pages() -> Iterator[Path]:
    """Yield the pages of the documentation whose code trains natively."""
    for page in (_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))):
        if page.stem not in PAGES_OF_DEVICES and any(python_blocks(page.read_text(encoding="utf-8"))):
            yield page.relative_to(_ROOT)


def script_of(page: Path, folder: Path) -> Path:
    """Return a script in a folder with all code of a page."""
    script = folder / f"page_{page.stem}.py"  # no name of a package
    blocks = python_blocks((_ROOT / page).read_text(encoding="utf-8"))
    script.write_text("\n".join(block.code for block in blocks), encoding="utf-8")
    return script


def compare_page(page: Path, scripts: Scripts, place: Path) -> Ran:
    """Return the outcome of both runs of a page's code."""
    return scripts.run(script_of(page, place), PARITY, folder=place)


def compare(program: Program, scripts: Scripts, place: Path) -> Ran:
    """Return the outcome of both runs of a program, in a copy of its folder without words for GPUs.

    Its error is "" if they are the same, or different as they have to be.
    """
    copy = place / program.folder.name
    shutil.copytree(program.folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file in copy.rglob("*.py"):
        # Both sides run the same text, and on one of them there seems to be a GPU.
        text = on_the_host(file.read_text(encoding="utf-8")).replace(
            "assert not torch.cuda", "assert torch or torch.cuda"
        )
        file.write_text(text, encoding="utf-8")
    ran = scripts.run(copy / program.script, PARITY, *program.arguments, folder=copy)
    if f"{program.folder.name}/{program.script}" in DIFFERENT:
        expected = "They differ" in ran.error and ran.error.count("printed line of") == ran.error.count(" in update ")
        return ran._replace(error="" if expected else ran.error or "they are the same")
    return ran
