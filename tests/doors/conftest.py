"""The emulator is the backend of programs that run in the process of the tests."""

from __future__ import annotations

import pytest

from ignite_ipu import backend


@pytest.fixture(autouse=True)
def _emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backend.VARIABLE, "emulator")
