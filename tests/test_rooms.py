"""Rooms of the package import only rooms below them, and no file imports itself by way of others."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Dict, Set

import pytest

import ignite_ipu

ROOT = Path(ignite_ipu.__file__).parent
GROUND = {
    "ignite_ipu.backend",
    "ignite_ipu.listing",
    "ignite_ipu.program.guards.modes",
    "ignite_ipu.program.tensors.raw",
}
# What each room may import beside itself and the ground, from the lowest on.
PIPELINE = {
    "profiling": {"errors"},
    "costs": {"errors", "units", "profiling"},
    "placing": {"errors", "profiling", "costs"},
    "planning": {"errors", "units", "profiling", "costs", "placing"},
}
FILES_OF_PLANS = {"ignite_ipu.checkpoints.atomic_files"}


def imported_by(file: Path) -> Set[str]:
    """Return the modules of the package that a file imports anywhere, for types alone, too."""
    found = {node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)}
    modules = {node.module or "" for node in found} | {f"{node.module}.{n.name}" for node in found for n in node.names}
    return {module for module in modules if module.startswith("ignite_ipu") and exists(module)}


def exists(module: str) -> bool:
    path = ROOT.parent.joinpath(*module.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


@pytest.mark.parametrize("room", PIPELINE)
def test_rooms_of_the_pipeline_import_what_is_below(room):
    """A plan is made of costs, and placed on IPUs without the planner."""
    allowed = GROUND | FILES_OF_PLANS | {f"ignite_ipu.pipeline.{name}" for name in (room, *PIPELINE[room])}
    for file in (ROOT / "pipeline" / room).glob("*.py"):
        others = {m for m in imported_by(file) if not any(m == a or m.startswith(f"{a}.") for a in allowed)}
        assert others - {"ignite_ipu", "ignite_ipu.pipeline"} == set(), file


def test_no_file_of_the_pipeline_is_in_a_circle():
    """Imports within functions and for types count as others do."""
    files = {
        ".".join(("ignite_ipu", *file.relative_to(ROOT).with_suffix("").parts)): imported_by(file)
        for file in (ROOT / "pipeline").rglob("*.py")
        if file.name != "__init__.py"
    }
    waiting: Dict[str, Set[str]] = {name: imports & files.keys() for name, imports in files.items()}
    while waiting:
        ready = {name for name, imports in waiting.items() if not imports & waiting.keys()}
        assert ready, f"a circle among {sorted(waiting)}"
        waiting = {name: imports for name, imports in waiting.items() if name not in ready}
