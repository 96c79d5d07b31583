"""Rooms import only rooms below them, and no module imports itself by way of others."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import weakref
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.engines.call_loader import MicroBatches
from ignite_ipu.program.module_state import REGISTRATIONS
from ignite_ipu.session.resolved import Resolved
from tests.architecture import PACKAGES, ROOT, Climbs, circles, draw, imports, members, rooms

FLOORS = (
    ("capabilities", "operators", "torch_names"),  # which the emulator shares
    ("emulator", "errors", "poptorch_types"),
    ("backend", "launched"),
    ("checkpoints", "cli"),
    ("program",),
    ("optimizers", "pipeline"),
    ("session",),
    ("deferred", "handlers"),
    ("engines",),
    ("migration", "running"),
    ("auto", "parity", "selftest"),
)
BELOW = {room: {name for lower in FLOORS[:floor] for name in lower} for floor, row in enumerate(FLOORS) for room in row}
# The emulator is one of two PopTorches: code that needs the one in use gets it from the backend. These ask this one.
ASKS_THE_EMULATOR = {
    "ignite_ipu.cli.cache": "ignite_ipu.emulator.files.cache",
    "ignite_ipu.cli.instance": "ignite_ipu.emulator.popdist.instances",
    "ignite_ipu.migration.trial.": "ignite_ipu.emulator.inspection",
    "ignite_ipu.program.options": "ignite_ipu.emulator.options.popart",
}
# Classes of many members: interfaces of PopTorch's, and the public settings.
WIDE = {
    "emulator.executor.executor.PoplarExecutor",
    "emulator.options.root.Options",
    "poptorch_types.Options",
    "program.config.IPUConfig",
}
MOST_MEMBERS = 30
DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def modules():
    """All modules, which takes seconds to read."""
    return imports()


def test_a_room_imports_rooms_below(modules):
    """A row of the table above may import all rows before it."""
    above = {room: others - BELOW.get(room, {"cli"}) for room, others in rooms(modules).items()}
    assert {room: others for room, others in above.items() if others} == {}


def test_the_emulator_is_asked_for_by_few(modules):
    """Everything else runs with the SDK's PopTorch as it does with the emulator."""
    asked = {(name, other) for name, others in modules.items() for other in others if _is_emulator(other)}
    strange = {(name, other) for name, other in asked if not _is_emulator(name) and not _may_ask(name, other)}
    assert strange == set()


@pytest.mark.parametrize("room", sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))
def test_a_room_begins_with_its_purpose_its_imports_and_a_start(room):
    """A newcomer learns them from the first lines of each room."""
    folder = ROOT / room
    text = " ".join(str(ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))).split())
    assert "import" in text
    start = re.search(r"Start(?: reading)? with `([\w./]+)`", text)
    assert start is not None
    first = folder / start.group(1).replace(".py", "").replace(".", "/")
    assert first.with_suffix(".py").exists() or (first / "__init__.py").exists()


@pytest.mark.parametrize("package", [f"ignite_ipu.{name}" for name in PACKAGES])
def test_rooms_within_a_package_are_in_no_circle(package, modules):
    """They lie above each other, too."""
    assert circles(rooms(modules, package)) == []


def test_no_module_imports_itself_by_way_of_others(modules):
    """Imports within functions and for types count as others do."""
    assert circles(modules) == []


def test_no_other_class_has_many_members():
    """One concept each: states, and collaborators with names of their own."""
    wide = {name.partition(".")[2] for name, size in members().items() if size > MOST_MEMBERS}
    assert wide <= WIDE


def test_a_value_goes_down_through_the_floors_once(modules, monkeypatch):
    """Options, model and optimizer, from the arguments of a trainer and an evaluator to the executors."""
    # Loops that other tests have left look at each registration of a module.
    monkeypatch.setattr(REGISTRATIONS, "observers", weakref.WeakSet())
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer, options = torch.optim.Adam(model.parameters()), backend.poptorch().Options()
    climbs = Climbs(modules, type(options), Resolved, IPUConfig, type(model), type(optimizer))
    batch = torch.randn(3, 4), torch.randint(2, (3,))
    before = sys.getprofile()
    sys.setprofile(climbs)
    try:
        trainer = create_ipu_trainer(model, optimizer, F.cross_entropy, config=IPUConfig(options=options))
        trainer.run([batch])
        create_ipu_evaluator(model).run([batch])
        trainer.ipu.close()
    finally:
        sys.setprofile(before)
    assert climbs.found == set()


class Pair(NamedTuple):
    """A batch whose class no other value has."""

    x: torch.Tensor
    y: torch.Tensor


class Failure(Exception):
    """An error of the user's code."""


class Failing(nn.Linear):
    """A model whose forward raises."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise Failure(f"{len(x)} rows")


def test_a_batch_goes_down_once_and_an_error_comes_back_once(modules, monkeypatch):
    """Batches of a loader, joined for a call, on their way to the executor; and an error of forward on its way out."""
    monkeypatch.setattr(REGISTRATIONS, "observers", weakref.WeakSet())
    batches = [Pair(torch.randn(4, 4), torch.randint(2, (4,))) for _ in range(4)]
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    climbs = Climbs(modules, Pair, MicroBatches, BaseException)
    before = sys.getprofile()
    sys.setprofile(climbs)
    try:
        for model in (nn.Linear(4, 2), Failing(4, 2)):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            trainer = create_ipu_trainer(model, optimizer, F.cross_entropy, device_iterations=2)
            with contextlib.ExitStack() as raised:
                if isinstance(model, Failing):
                    raised.enter_context(pytest.raises(Failure))
                trainer.run(loader)
                create_ipu_evaluator(model).run(loader)
            trainer.ipu.close()
    finally:
        sys.setprofile(before)
    assert climbs.found == set()


def test_the_picture_shows_the_rooms_that_there_are(tmp_path, modules):
    """`python -m tests.architecture docs/pictures/rooms.svg` draws it."""
    draw(rooms(modules), tmp_path / "rooms.svg")
    assert (DOCS / "pictures" / "rooms.svg").read_text() == (tmp_path / "rooms.svg").read_text()


def test_the_page_names_rooms_and_modules_that_there_are():
    """All rooms, and every path that it writes."""
    text = (DOCS / "architecture.md").read_text()
    assert {name for row in FLOORS for name in row} <= set(re.findall(r"`(\w+)`", text))
    paths = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    assert paths and all((DOCS.parent / path).exists() or (ROOT / path).exists() for path in paths)


def _may_ask(module: str, asked: str) -> bool:
    return any(module.startswith(name) and asked == of for name, of in ASKS_THE_EMULATOR.items())


def _is_emulator(module: str) -> bool:
    return f"{module}.".startswith("ignite_ipu.emulator.")
