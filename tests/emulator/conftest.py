"""The emulator's tests share no IPUs and no signing key with anybody, and count from zero."""

from __future__ import annotations

import os
from typing import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def _machine_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write nothing into the user's directories, and let no other process take the tests' IPUs."""
    base = tmp_path_factory.mktemp("emulator")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IGNITE_IPU_RUNTIME_DIR", str(base / "run"))
        patch.setenv("IGNITE_IPU_STATE_DIR", str(base / "state"))
        for name in [name for name in os.environ if name.startswith("POPTORCH_")]:
            patch.delenv(name)
        yield
