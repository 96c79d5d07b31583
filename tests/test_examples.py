"""Every example runs in seconds, checks its own result, and shows the promised output."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Dict, List

import pytest

from tests.half_precision import needs_half_precision

EXAMPLES = Path(__file__).parent.parent / "examples"
# Arguments that make an example quick; without a row it runs as it is.
QUICK: Dict[str, List[str]] = {
    "accelerate_digits.py": ["--epochs", "2"],
    "accelerate_digits_gpu.py": ["--epochs", "2"],
    "digits.py": ["--epochs", "1", "--output", "checkpoints", "--curve", "curve.png"],
    "digits_gpu.py": ["--epochs", "1", "--output", "checkpoints"],
    "mnist_pipeline.py": ["--epochs", "1"],
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=needs_half_precision if path.name == "half_precision.py" else ())
        for path in sorted(EXAMPLES.glob("*.py"))
    ],
)
def test_it_runs(name, tmp_path, scripts):
    """An example ends without an error, in an empty directory."""
    arguments = QUICK.get(name, [])
    assert scripts.run(EXAMPLES / name, "emulator", *arguments, folder=tmp_path).error == ""
    if "--curve" in arguments:
        assert (tmp_path / "curve.png").stat().st_size > 10_000


@pytest.mark.parametrize(("twin", "name", "most"), [("digits_gpu.py", "digits.py", 9)])
def test_moving_to_an_ipu_changes_few_lines(twin, name, most):
    """The pair differs in fewer lines than one has fingers, first line and blank lines aside."""
    before, after = ((EXAMPLES / file).read_text().splitlines()[1:] for file in (twin, name))
    changed = [line for line in difflib.ndiff(before, after) if line[:1] in "+-" and line[2:].strip()]
    added = [line for line in changed if line[0] == "+"]
    removed = [line for line in changed if line[0] == "-"]
    assert max(len(added), len(removed)) <= most, changed


def test_a_resumed_example_goes_on(tmp_path, scripts, processes):
    """The digits example takes up its own checkpoint, in a process of its own."""
    words = ["--output", "out", "--epochs"]
    assert scripts.run(EXAMPLES / "digits.py", "emulator", *words, "1", folder=tmp_path).error == ""
    (checkpoint,) = (tmp_path / "out").glob("checkpoint_*.pt")
    processes.run([EXAMPLES / "digits.py", *words, "2", "--resume", checkpoint], cwd=tmp_path, check=True)
