"""A fixture that runs a script written in a test, and returns its output and the substitutions."""

from __future__ import annotations

import contextlib
import io
import linecache
import textwrap
from typing import Any, Callable, List, NamedTuple

import pytest

from ignite_ipu import backend
from ignite_ipu.running import Substitution, run_script


class Ran(NamedTuple):
    output: List[str]
    substitutions: List[Substitution]

    def became(self, original: str) -> str:
        """Return the substitution of a call, which has to occur exactly once."""
        (found,) = [substitution.became for substitution in self.substitutions if substitution.original == original]
        return found


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "emulator")


@pytest.fixture
def run(tmp_path: Any) -> Callable[..., Ran]:
    """Run a text as a script."""

    def run_text(text: str, *argv: str, name: str = "script.py", **arguments: Any) -> Ran:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        linecache.clearcache()
        substitutions: List[Substitution] = []
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            run_script(str(path), argv, substitutions=substitutions, **arguments)
        return Ran(output.getvalue().splitlines(), substitutions)

    return run_text


@pytest.fixture
def natively(run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> Callable[..., List[str]]:
    """Run a text as a script of PyTorch's own, and return its output."""

    def run_natively(text: str, *argv: str) -> List[str]:
        with monkeypatch.context() as patched:
            patched.setenv(backend.VARIABLE, "native")
            return run(text, *argv, name="native_script.py").output

    return run_natively
