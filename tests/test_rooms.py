"""Rooms import only rooms below them, and no module imports itself by way of others."""

from __future__ import annotations

import pytest

from tests.architecture import circles, imports, rooms

FLOORS = (
    ("emulator", "errors"),
    ("backend",),
    ("checkpoints", "cli"),
    ("program",),
    ("optimizers", "pipeline"),
    ("session",),
    ("deferred", "handlers"),
    ("engines",),
    ("migration", "running"),
    ("selftest",),
)
BELOW = {room: {name for lower in FLOORS[:floor] for name in lower} for floor, row in enumerate(FLOORS) for room in row}
# The emulator is one of two PopTorches: whoever wants the one in use asks the backend.
ASKS_THE_EMULATOR = ("ignite_ipu.migration.trial.", "ignite_ipu.migration.analysis.operators")
BELOW["handlers"] |= {"engines"}
MODULES = imports()


@pytest.mark.parametrize("room", rooms(MODULES))
def test_a_room_imports_rooms_below(room):
    """A row of the table above may import all rows before it."""
    assert rooms(MODULES)[room] <= BELOW.get(room, {"cli"})


def test_the_emulator_is_asked_for_by_few():
    """Everything else runs with the SDK's PopTorch as it does with the emulator."""
    users = {name for name, others in MODULES.items() if any(_is_emulator(other) for other in others)}
    assert {name for name in users if not _is_emulator(name) and not name.startswith(ASKS_THE_EMULATOR)} == set()


@pytest.mark.parametrize("package", ["ignite_ipu.pipeline"])
def test_rooms_within_a_package_are_in_no_circle(package):
    """They lie above each other, too."""
    assert circles(rooms(MODULES, package)) == []


def _is_emulator(module: str) -> bool:
    return f"{module}.".startswith("ignite_ipu.emulator.")
