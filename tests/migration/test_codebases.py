"""Code bases in the style of public ones, moved whole, train from their new folder to the losses of a native run."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest

pytest.importorskip("accelerate")

from ignite_ipu.migration.commands.migrate import add_arguments, main

CODEBASES = Path(__file__).parent / "codebases"
# The script that is run, and the files that are moved together.
SCRIPTS = {
    "finetune": ("examples/run_classification.py", []),
    "ignited": ("main.py", ["engines/evaluation.py", "engines/training.py", "main.py"]),
    "imaging": ("tools/train.py", []),
    "template": ("main.py", ["main.py", "utils/checkpoint.py"]),
}


def migrate(folder, output):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args([str(folder), "-o", str(output)]))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_first_losses_are_the_native_ones(name, tmp_path, scripts):
    """And the accuracy at the end is; everything was trained on the device."""
    folders = {backend: tmp_path / backend / name for backend in ("native", "emulator")}
    shutil.copytree(CODEBASES / name, folders["native"])
    assert migrate(CODEBASES / name, folders["emulator"]) == 0
    ran = [scripts.run(place / SCRIPTS[name][0], backend, folder=place) for backend, place in folders.items()]
    assert [each.error for each in ran] == ["", ""]
    native, migrated = (each.result for each in ran)
    assert migrated["losses"][:20] == pytest.approx(native["losses"][:20], rel=1e-5)
    assert migrated["accuracy"] == pytest.approx(native["accuracy"], abs=0.05)
    assert ran[1].updates > 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_files_that_hang_together_are_named(name, tmp_path, capsys):
    """The rest is copied as it is, with its permissions."""
    assert migrate(CODEBASES / name, tmp_path / name) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("moved together: ")]
    together = SCRIPTS[name][1]
    assert told == (
        [f"moved together: {', '.join(str(CODEBASES / name / path) for path in together)}"] if together else []
    )
    for path in (path for path in (CODEBASES / name).rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        copy = tmp_path / name / path.relative_to(CODEBASES / name)
        assert copy.stat().st_mode == path.stat().st_mode
        assert path.suffix == ".py" or copy.read_bytes() == path.read_bytes()
