"""Code bases of several files through each door: the tree is copied for each, and its script is started there."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from ignite_ipu.migration.checker import check_paths
from ignite_ipu.migration.commands import migrate
from ignite_ipu.migration.verdict import Verdict
from tests.doors.comparing import Outcome, compared, with_import
from tests.migration.test_codebases import CODEBASES as MIGRATED
from tests.migration.test_codebases import SCRIPTS
from tests.scripts import RUN, Scripts

CODEBASES = Path(__file__).parent / "codebases"
# A machine without a GPU runs the program natively once these words are replaced.
_ON_THE_HOST = (
    (".cuda()", ""),
    (".cuda(non_blocking=True)", ""),
    ("cuda:0", "cpu"),
    ('"cuda"', '"cpu"'),
    ("assert torch.cuda", "assert not torch.cuda"),
    ("torch.cuda.get_device_properties(0).name", '"none"'),
    ("torch.cuda.set_device(args.device)", "pass"),
    ("torch.cuda.synchronize()", "pass"),
)


class Program(NamedTuple):
    """A script of a code base, with its arguments, and the verdict if a setting decides about it, and no text.

    The code base is in a folder of this package, or in another one.
    """

    codebase: str
    script: str
    arguments: Tuple[str, ...] = ()
    verdict: Optional[Verdict] = None
    source: Path = CODEBASES

    def __str__(self) -> str:
        return " ".join([f"{self.codebase}/{self.script}", *self.arguments])


PROGRAMS = (
    Program("dqn", "main.py"),
    Program("gan", "train.py"),
    Program("lm", "run_clm_no_trainer.py"),
    Program("package", "digits/__main__.py", ("--epochs", "3")),
    Program("segmentation", "tools/train.py"),
    Program("vision", "train.py"),
    Program("vision", "train.py", ("--amp", "--opt", "adamw", "--clip-grad", "1.0")),
    Program("vision", "train.py", ("--opt", "radam", "--mixup", "0"), Verdict.TRAINS_ON_HOST),
    Program("vision", "train.py", ("--model", "early_exit"), Verdict.TRAINS_BY_FUNCTION),
    *(Program(name, script, source=MIGRATED) for name, (script, _) in SCRIPTS.items()),
)
# Quick ones, by import, of a package that `python -m` starts, and left alone as one of several.
SAMPLE = tuple(each for each in PROGRAMS if each.codebase in ("dqn", "package") or each.verdict is Verdict.REFUSED)


def on_the_host(text: str) -> str:
    """Return the text of a program without its words for GPUs."""
    for gpu, host in _ON_THE_HOST:
        text = text.replace(gpu, host)
    return text


def differences(program: Program, scripts: Scripts, folder: Path) -> List[str]:
    """Return the differences between the doors, and from the numbers of the native run; empty if there are none."""
    original = program.source / program.codebase
    places = {door: folder / door / program.codebase for door in ("native", "run", "auto", "migrate")}
    for door in ("native", "run", "auto"):
        shutil.copytree(original, places[door], ignore=shutil.ignore_patterns("__pycache__"))
    for file in places["native"].rglob("*.py"):
        file.write_text(on_the_host(file.read_text(encoding="utf-8")), encoding="utf-8")
    script = places["auto"] / program.script
    script.write_text(with_import(script.read_text(encoding="utf-8")), encoding="utf-8")
    alone = _migrate(original, places["migrate"], program.script)
    found: Dict[str, Outcome] = {}
    for door, place in places.items():
        backend = {"native": "native", "run": RUN}.get(door, "emulator")
        ran = scripts.run(place / program.script, backend, *program.arguments, folder=place)
        found[door] = Outcome.of(ran)
    native = found.pop("native")
    if native.error:
        return [f"native: {native.error}"]
    if alone:
        found["migrate"] = Outcome(Verdict.REFUSED, [], alone)
    verdicts = check_paths([str(original)]).verdicts
    judged = verdicts.get(str(original / program.script), Verdict.NOTHING)
    return compared(found, program.verdict or judged, native.numbers, 1e-4)


def _migrate(folder: Path, output: Path, script: str) -> str:
    """Write the migrated code base, and return the reason for which a script is left alone, "" for none."""
    parser = argparse.ArgumentParser()
    migrate.add_arguments(parser)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()) as report:
        migrate.main(parser.parse_args([str(folder), "-o", str(output), "--report", "json"]))
    files = json.loads(report.getvalue())["files"]
    (found,) = (each for each in files if each["path"] == str(folder / script))
    return found["remarks"][0]["message"] if found["outcome"] == "left alone" else ""
