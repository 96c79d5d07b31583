"""Every test begins and ends without accelerate's process-wide state."""

from __future__ import annotations

from typing import Iterator

import pytest

pytest.importorskip("accelerate")

from tests.accelerate_state import forget


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    forget()
    yield
    forget()
