"""The porting tutorial shows the real output of the commands; run as a program, this file writes it into the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.scripts import Scripts

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "pytorch_loop"
PAGE = ROOT / "docs" / "porting-tutorial.md"


def outputs(scripts):
    """Run the three ways and the native run, and return the output for each part of the page."""

    def ran(name, *words, backend="emulator"):
        done = scripts.run(ROOT / name, backend, *words, folder=EXAMPLES)
        assert not done.error or done.error.endswith("SystemExit: 1\n"), done.error
        return done.output, done.messages

    command, script = "ignite_ipu/__main__.py", "gpu.py"
    check, migrate, run = (ran(command, *words, script) for words in (["check"], ["migrate", "--diff"], ["run"]))
    native, migrated = ran("examples/pytorch_loop/gpu.py", backend="native"), ran("examples/pytorch_loop/ipu.py")
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


def numbers_blurred(text):
    """Return text without the last digits of losses, which depend on the processor."""
    return re.sub(r"(loss \d+\.\d\d)\d+", r"\1", text)


def test_the_page_shows_what_the_commands_print(scripts):
    """All three ways end with the native accuracy."""
    page, parts = PAGE.read_text(encoding="utf-8"), outputs(scripts)
    assert numbers_blurred(page) == numbers_blurred(written(page, parts))
    native, *others = [float(number) for number in re.findall(r"(\d+\.\d)%", parts["accuracy"])]
    assert len(others) == 2 and native > 90
    assert others == pytest.approx([native, native], abs=1.0)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), outputs(Scripts())), encoding="utf-8")
