"""Every example runs in seconds and checks its own result, and each port prints the numbers of its script."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Dict, List

import pytest

from tests.examples_page import EXAMPLES, PAGE, PAIRS, page
from tests.half_precision import needs_half_precision

# Arguments that make an example quick; without a row it runs as it is.
QUICK: Dict[str, List[str]] = {
    "accelerate_loop": ["--epochs", "1"],
    "ignite_trainer": ["--epochs", "1", "--output", "checkpoints", "--curve", "curve.png"],
    "mnist_pipeline.py": ["--epochs", "1"],
}
# Dropout draws other numbers on a device.
WITH_DROPOUT = ("accelerate_loop", "ignite_trainer", "transformer")
# How many numbers rounding decides little: adversaries amplify it. PyTorch itself ends with a generator's loss of 1.04,
# 0.98 or 0.84 if the last bits of the first weights change.
DETERMINED = {"gan": 3}
# The porting tutorial runs this pair.
IN_PAIRS = [pair for pair in PAIRS if pair.folder != "pytorch_loop"]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=needs_half_precision if path.name == "half_precision.py" else ())
        for path in sorted(EXAMPLES.glob("*.py"))
    ],
)
def test_it_runs(name, tmp_path, scripts):
    """An example ends without an error, in an empty directory."""
    assert scripts.run(EXAMPLES / name, "emulator", *QUICK.get(name, []), folder=tmp_path).error == ""


def numbers(text):
    """Return the numbers that an example prints about its epochs."""
    printed = [line for line in text.splitlines() if re.match(r"epoch|update|radius|mean|test", line)]
    assert printed
    return [float(number) for line in printed for number in re.findall(r"\d+\.?\d*", line)]


@pytest.mark.parametrize("pair", IN_PAIRS, ids=lambda pair: pair.folder)
def test_a_port_trains_as_its_script(pair, tmp_path, scripts):
    """Both learn, and print the same numbers up to rounding where no dropout is."""
    if pair.gpu.suffix == ".ipynb":
        pytest.importorskip("IPython")

    def ran(path, backend):
        words = QUICK.get(pair.folder, [])
        if path.suffix == ".ipynb":
            path, words = Path(__file__).parent / "cells.py", [str(path)]
        return scripts.run(path, backend, *words, folder=tmp_path)

    native, ported = ran(pair.gpu, "native"), ran(pair.ipu, "emulator")
    assert (native.error, ported.error) == ("", "")
    assert native.updates == 0 < ported.updates
    if pair.folder not in WITH_DROPOUT:
        found, expected = (numbers(each.output)[: DETERMINED.get(pair.folder)] for each in (ported, native))
        assert found == pytest.approx(expected, rel=0.02, abs=0.01)
    if "--curve" in QUICK.get(pair.folder, []):
        assert (tmp_path / "curve.png").stat().st_size > 10_000


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.migrated], ids=lambda pair: pair.folder)
def test_a_port_is_what_migrate_writes(pair):
    pytest.importorskip("libcst")
    from ignite_ipu.migration.migrator import migrate_source
    from ignite_ipu.migration.source.file import read_source

    assert pair.ipu.read_text(encoding="utf-8") == migrate_source(read_source(pair.gpu)).text


def test_the_page_is_written_from_the_files():
    """`python -m tests.examples_page` writes it; each folder of examples is on it."""
    assert PAGE.read_text(encoding="utf-8") == page()
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} - {"__pycache__"} == {
        pair.folder for pair in PAIRS
    }


@pytest.mark.parametrize(("twin", "name", "most"), [("ignite_trainer/gpu.py", "ignite_trainer/ipu.py", 9)])
def test_moving_to_an_ipu_changes_few_lines(twin, name, most):
    """The pair differs in fewer lines than one has fingers, first line and blank lines aside."""
    before, after = ((EXAMPLES / file).read_text().splitlines()[1:] for file in (twin, name))
    changed = [line for line in difflib.ndiff(before, after) if line[:1] in "+-" and line[2:].strip()]
    added = [line for line in changed if line[0] == "+"]
    removed = [line for line in changed if line[0] == "-"]
    assert max(len(added), len(removed)) <= most, changed


def test_a_resumed_example_goes_on(tmp_path, scripts, processes):
    """The example with Ignite takes up its own checkpoint, in a process of its own."""
    words = ["--output", "out", "--epochs"]
    script = EXAMPLES / "ignite_trainer" / "ipu.py"
    assert scripts.run(script, "emulator", *words, "1", folder=tmp_path).error == ""
    (checkpoint,) = (tmp_path / "out").glob("checkpoint_*.pt")
    processes.run([script, *words, "2", "--resume", checkpoint], cwd=tmp_path, check=True)
