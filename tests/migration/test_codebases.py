"""Code bases in the style of public ones, moved whole, train from their new folder to the losses of a native run."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest

pytest.importorskip("accelerate")

from ignite_ipu.migration.commands.migrate import add_arguments, main
from tests.migration.test_corpus import run_all

CODEBASES = Path(__file__).parent / "codebases"
# The script that is run, and what is moved together.
SCRIPTS = {
    "finetune": ("examples/run_classification.py", []),
    "ignited": ("main.py", ["engines/evaluation.py", "engines/training.py", "main.py"]),
    "imaging": ("tools/train.py", ["src/imaging/data.py", "src/imaging/trainer.py"]),
    "template": ("main.py", ["main.py", "utils/checkpoint.py"]),
}


def migrate(folder, output):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return main(parser.parse_args([str(folder), "-o", str(output)]))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each prints natively as it is, and on the emulator when it is migrated."""
    folder, programs = tmp_path_factory.mktemp("codebases"), {}
    for name in SCRIPTS:
        shutil.copytree(CODEBASES / name, folder / "native" / name)
        assert migrate(CODEBASES / name, folder / "emulator" / name) == 0
    for backend in ("native", "emulator"):
        places = [folder / backend / name for name in SCRIPTS]
        scripts = [
            (str(place), (place / SCRIPTS[place.name][0]).read_text(), SCRIPTS[place.name][0]) for place in places
        ]
        programs[backend] = {Path(place).name: result for place, result in run_all(scripts, backend).items()}
    return programs


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_first_losses_are_the_native_ones(name, results):
    """And the accuracy at the end is; everything was trained on the device."""
    (native, _), (migrated, updates) = results["native"][name], results["emulator"][name]
    assert isinstance(migrated, dict), migrated
    assert migrated["losses"][:20] == pytest.approx(native["losses"][:20], rel=1e-5)
    assert migrated["accuracy"] == pytest.approx(native["accuracy"], abs=0.05)
    assert updates > 0


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
