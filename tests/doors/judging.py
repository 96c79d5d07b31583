"""Compares the verdict of `check` on a program with a run of it in this process."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, List

import pytest

from ignite_ipu import auto
from ignite_ipu.migration.checker import judge_source
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.source.file import Source
from ignite_ipu.migration.verdict import Verdict
from ignite_ipu.running.substituted import active_substitutes, refusal_behind


def assert_trains(text: str, folder: Path, verdict: Verdict = Verdict.TRAINS) -> None:
    """Assert that `check` gives the verdict on a program, and that a run has the native losses."""
    expected = losses_of(text, folder)
    assert expected
    with auto.enabled():
        assert losses_of(text, folder) == pytest.approx(expected, rel=1e-5)
    assert judge_source(Source("program.py", text))[2].verdict is verdict


def assert_refused(text: str, folder: Path) -> None:
    """Assert that `check` and a run refuse a program at the same line, with the same sentence and way out."""
    findings, _, judged = judge_source(Source("program.py", text))
    refused = {each.line: each for each in findings if each.run is Outcome.REFUSED}
    refusal = refusal_of(text, folder)
    assert refusal.line is not None
    found = refused[refusal.line[1]]
    assert found.message.partition(" (")[0] in str(refusal)
    assert found.remedy in str(refusal)
    assert judged.verdict is Verdict.REFUSED


def refusal_of(text: str, folder: Path) -> Any:
    """Return the refusal of a program that runs in this process."""
    with auto.enabled():
        substitutes = active_substitutes()
        with pytest.raises(Exception) as raised:  # noqa: PT011  # PopTorch's, or this library's
            losses_of(text, folder)
    return refusal_behind(raised.value, substitutes) or raised.value


def losses_of(text: str, folder: Path) -> List[float]:
    """Return the losses of a program that runs in this process."""
    file = folder / "program.py"
    file.write_text(text, encoding="utf-8")
    module: Any = types.ModuleType("program")
    module.__file__ = str(file)
    exec(compile(text, str(file), "exec"), vars(module))
    return list(module.losses)
