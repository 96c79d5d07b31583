"""The backend is chosen once, by the installed packages or the environment, and logged."""

from __future__ import annotations

import logging
import subprocess
import sys
import types
from typing import Iterator

import pytest

from ignite_ipu import backend


@pytest.fixture(autouse=True)
def _fresh_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every test choose anew, with a stand-in for the emulator, which is slow to import."""
    emulator = types.ModuleType("ignite_ipu.emulator")
    monkeypatch.setitem(sys.modules, "ignite_ipu.emulator", emulator)
    monkeypatch.delitem(sys.modules, "poptorch", raising=False)
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    backend._load.cache_clear()
    yield
    backend._load.cache_clear()


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("poptorch")
    module.__version__ = "3.3.0+1234"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "poptorch", module)
    return module


def test_without_sdk_the_emulator_runs_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing installed means the emulator, announced once however often it is asked for."""
    with caplog.at_level(logging.INFO, logger="ignite_ipu"):
        assert [backend.poptorch().__name__ for _ in range(3)] == ["ignite_ipu.emulator"] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "emulator" in caplog.text and "CPU" in caplog.text
    assert backend.name() == "emulator" and backend.is_emulator()


def test_installed_sdk_is_preferred(sdk: types.ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    """An installed SDK runs, and the line names its version."""
    with caplog.at_level(logging.INFO, logger="ignite_ipu"):
        assert backend.poptorch() is sdk
    assert backend.name() == "sdk" and not backend.is_emulator()
    assert "3.3.0+1234" in caplog.text


def test_environment_overrules_an_installed_sdk(sdk: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """IGNITE_IPU_BACKEND=emulator wins over the SDK."""
    monkeypatch.setenv(backend.VARIABLE, "emulator")
    assert backend.is_emulator()


def test_demanded_sdk_that_is_absent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Demanding the SDK where there is none never falls back."""
    monkeypatch.setenv(backend.VARIABLE, "sdk")
    with pytest.raises(backend.BackendError, match=r"no module named poptorch is installed.*unset the variable"):
        backend.poptorch()


def test_emulator_under_the_name_poptorch_is_not_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that `install()` puts under the name poptorch is recognised as the emulator."""
    monkeypatch.setitem(sys.modules, "poptorch", sys.modules["ignite_ipu.emulator"])
    assert backend.is_emulator()
    monkeypatch.setenv(backend.VARIABLE, "sdk")
    with pytest.raises(backend.BackendError, match="install"):
        backend.poptorch()


@pytest.mark.parametrize("body", ["raise ImportError('Unable to import PopTorch')", "assert False, 'torch=='"])
def test_broken_sdk_is_never_replaced_silently(body: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An SDK that is there but fails to import stops the run, and the message explains how to go on without it."""
    (tmp_path / "poptorch.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(backend.BackendError, match=r"does not import.*IGNITE_IPU_BACKEND=emulator"):
        backend.poptorch()


def test_native_has_no_poptorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native backend is a valid choice without a PopTorch."""
    monkeypatch.setenv(backend.VARIABLE, "native")
    assert backend.choice() == "native"
    with pytest.raises(backend.BackendError, match="without an IPU"):
        backend.poptorch()


def test_unknown_choice_lists_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt choice is refused with the valid ones."""
    monkeypatch.setenv(backend.VARIABLE, "ipu")
    with pytest.raises(ValueError, match="emulator, sdk, native"):
        backend.choice()


def test_import_loads_and_logs_nothing() -> None:
    """Importing the module imports neither torch nor poptorch nor the emulator, and prints nothing."""
    program = (
        "import sys, ignite_ipu.backend\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'poptorch') or m == 'ignite_ipu.emulator'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
