"""The porting tutorial shows what the commands really print; run as a program, this file writes them into the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = ROOT / "docs" / "porting-tutorial.md"


def outputs():
    """Run the three ways and the native run, and return what each part of the page shows."""
    environment = {**os.environ, "IGNITE_IPU_BACKEND": "emulator", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

    def start(*command, backend="emulator"):
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=EXAMPLES,
            env={**environment, "IGNITE_IPU_BACKEND": backend},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(process):
        out, error = process.communicate(timeout=240)
        assert process.returncode in (0, 1), error[-2000:]
        return out, error

    tool = ("-m", "ignite_ipu")
    check = finish(start(*tool, "check", "porting_gpu.py"))
    migrate = finish(start(*tool, "migrate", "--diff", "porting_gpu.py"))
    native = finish(start("porting_gpu.py"))
    run = finish(start(*tool, "run", "porting_gpu.py"))
    migrated = finish(start("porting_ipu.py"))
    accuracies = {
        "natively": native[0],
        "migrated": migrated[0],
        "with `run`": run[0],
    }
    rows = [f"| {name} | {text.split('accuracy ')[1].strip()} |" for name, text in accuracies.items()]
    return {
        "check": f"```text\n{check[0].rstrip()}\n```",
        "migrate": f"```diff\n{migrate[0].rstrip()}\n```",
        "run": f"```text\n{(run[1] + run[0]).rstrip()}\n```",
        "accuracy": "\n".join(["| | accuracy |", "|---|---|", *rows]),
    }


def written(page, parts):
    """Return the page with the parts put between their marks."""
    for name, text in parts.items():
        mark = re.compile(f"<!-- begin {name} -->.*<!-- end {name} -->", re.DOTALL)
        assert mark.search(page), name
        page = mark.sub(lambda found, name=name, text=text: f"<!-- begin {name} -->\n{text}\n<!-- end {name} -->", page)
    return page


@pytest.fixture(scope="module")
def parts():
    return outputs()


def numbers_blurred(text):
    """Return text without the last digits of losses, which depend on the processor."""
    return re.sub(r"(loss \d+\.\d\d)\d+", r"\1", text)


def test_the_page_shows_what_the_commands_print(parts):
    page = PAGE.read_text(encoding="utf-8")
    assert numbers_blurred(page) == numbers_blurred(written(page, parts))


def test_the_migrated_example_is_what_migrate_writes():
    pytest.importorskip("libcst")
    from ignite_ipu.migration.migrator import migrate_source
    from ignite_ipu.migration.source.file import read_source

    expected = migrate_source(read_source(EXAMPLES / "porting_gpu.py")).text
    assert (EXAMPLES / "porting_ipu.py").read_text(encoding="utf-8") == expected


def test_all_three_ways_end_with_the_native_accuracy(parts):
    native, *others = [float(number) for number in re.findall(r"(\d+\.\d)%", parts["accuracy"])]
    assert len(others) == 2 and native > 90
    assert others == pytest.approx([native, native], abs=1.0)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), outputs()), encoding="utf-8")
