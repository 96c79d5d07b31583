"""Figures and picture of the package's structure, from its imports: `python -m tests.architecture [PICTURE.svg]`.

A room is a file or package at the top of `ignite_ipu`. Imports for types and within functions count as all others do.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Dict, Iterator, List, Set, Tuple, Type

import ignite_ipu

ROOT = Path(ignite_ipu.__file__).parent
PACKAGES = ("emulator", "deferred", "migration", "pipeline")
MOST_MEMBERS = 25
"""A class with more members is asking to be two."""
_PASSING = ("ignite_ipu.emulator", "ignite_ipu.program.refusal_frames")
Graph = Dict[str, Set[str]]


def imports() -> Graph:
    """Return the imports of each module within the package; a package's own `__init__` bears the package's name."""
    files = {_name(file): file for file in sorted(ROOT.rglob("*.py"))}
    return {name: set(_imported(file, set(files))) - {name} for name, file in files.items()}


def rooms(modules: Graph, within: str = "ignite_ipu") -> Graph:
    """Return the imports of each room of a package from the other rooms."""
    found: Graph = {}
    for module, others in modules.items():
        room = _room(module, within)
        if room:
            found.setdefault(room, set()).update({_room(other, within) for other in others} - {room, ""})
    return found


def circles(graph: Graph) -> List[Set[str]]:
    """Return the largest groups in which each imports every other, by way of some."""
    reached = {name: _reached(name, graph) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted((set(group) for group in groups if group), key=sorted)


def floors(graph: Graph) -> Dict[str, int]:
    """Return on which floor each room lies: above all that it imports; rooms of a circle share one."""
    groups = circles(graph)
    together = {name: next((group for group in groups if name in group), {name}) for name in graph}
    found: Dict[str, int] = {}

    def floor(name: str) -> int:
        if name not in found:
            below = {other for each in together[name] for other in graph[each]} - together[name]
            found.update(dict.fromkeys(together[name], 1 + max(map(floor, below), default=0)))
        return found[name]

    return {name: floor(name) for name in graph}


def loaded_by_a_trainer() -> List[str]:
    """Return the modules of the planner that are loaded once a trainer has been made."""
    program = (
        "import sys, torch, ignite_ipu\n"
        "model = torch.nn.Linear(1, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "ignite_ipu.create_ipu_trainer(model, optimizer, torch.nn.functional.mse_loss)\n"
        "print(*(name for name in sys.modules if name.startswith('ignite_ipu.pipeline.planning.')))"
    )
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()


def members() -> Dict[str, int]:
    """Return the number of members of each class, by its module and name: methods but the constructor, and attributes.

    Attributes are those that the class or one of its methods sets.
    """
    found: Dict[str, int] = {}
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[f"{_name(file)}.{node.name}"] = len(set(_members(node)) - {"__init__"})
    return found


def figures() -> Dict[str, int]:
    """Return the counts of the structure."""
    modules, sizes = imports(), members()
    house = rooms(modules)
    return {
        "entries at the top": len(house),
        "modules": len(modules),
        "lines": sum(len(file.read_text(encoding="utf-8").splitlines()) for file in ROOT.rglob("*.py")),
        "longest module": max(len(file.read_text(encoding="utf-8").splitlines()) for file in ROOT.rglob("*.py")),
        "members of the widest class": max(sizes.values()),
        f"classes of more than {MOST_MEMBERS} members": sum(size > MOST_MEMBERS for size in sizes.values()),
        "floors": max(floors(house).values()),
        "arrows between rooms": sum(map(len, house.values())),
        "circles of rooms": len(circles(house)),
        "circles of modules": len(circles(modules)),
        **{f"floors of {name}": max(floors(rooms(modules, f"ignite_ipu.{name}")).values()) for name in PACKAGES},
        **{f"circles in {name}": len(circles(rooms(modules, f"ignite_ipu.{name}"))) for name in PACKAGES},
        "modules of the planner that a trainer loads": len(loaded_by_a_trainer()),
    }


class Climbs:
    """A function for `sys.setprofile`, which finds calls that hand a value to a module that imports the caller's.

    Such a value goes up again on its way down through the floors. Functions that only wrap another one are no callers.

    Args:
        modules: The imports of each module.
        values: The classes of values.

    Attributes:
        found: The calls, as `caller > called: class`.
    """

    def __init__(self, modules: Graph, *values: Type[Any]) -> None:
        self.found: Set[str] = set()
        self._imported = {name: _reached(name, modules) for name in modules}
        self._files = {str(ROOT.parent / name.replace(".", "/")) + ".py": name for name in modules}
        self._values = values

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        called = self._files.get(code.co_filename) if event == "call" else None
        if called is None or called.startswith("ignite_ipu.emulator."):
            return
        back = frame.f_back
        while back is not None and self._files.get(back.f_code.co_filename, "ignite_ipu.emulator").startswith(_PASSING):
            back = back.f_back
        caller = None if back is None else self._files[back.f_code.co_filename]
        if back is None or caller not in self._imported[called] - {called}:
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for given in map(type, map(frame.f_locals.get, names)):
            if issubclass(given, self._values):
                self.found.add(f"{caller}.{back.f_code.co_name} > {called}.{code.co_name}: {given.__name__}")


def draw(house: Graph, into: Path) -> None:
    """Write the picture: a box for each room, a row for each floor, a line to each room below that it imports.

    A line that goes by way of another room, too, is left out.
    """
    placed = floors(house)
    wide, step, broad = 860, 74, 116
    high = step * max(placed.values())
    centre: Dict[str, Tuple[float, float]] = {}
    for floor in sorted(set(placed.values())):
        # Each above the rooms that it imports.
        on_floor = [name for name in house if placed[name] == floor]
        on_floor.sort(key=lambda name: (_mean([centre[each][0] for each in house[name] if each in centre]), name))
        for i, name in enumerate(on_floor):
            centre[name] = ((2 * i + 1) * wide / (2 * len(on_floor)), high - (2 * floor - 1) * step / 2)
    lines = [
        _line(centre[a], centre[b])
        for a in sorted(house)
        for b in sorted(house[a])
        if placed[b] < placed[a] and not any(b in _reached(other, house) for other in house[a] - {b})
    ]
    boxes = [
        f'<rect x="{x - broad / 2:.0f}" y="{y - 15:.0f}" width="{broad}" height="30" rx="4"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}">{name}</text>'
        for name, (x, y) in sorted(centre.items())
    ]
    style = "rect{fill:#eef;stroke:#446}line{stroke:#99b;stroke-width:.7}text{font:14px sans-serif;text-anchor:middle}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}"><style>{style}</style>'
    into.write_text("\n".join([head, *lines, *boxes, "</svg>", ""]), encoding="utf-8")


def _line(above: Tuple[float, float], below: Tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = above, below
    return f'<line x1="{x1:.0f}" y1="{y1 + 15:.0f}" x2="{x2:.0f}" y2="{y2 - 15:.0f}"/>'


def _mean(numbers: List[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def _name(file: Path) -> str:
    parts = ("ignite_ipu", *file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path, modules: Set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in modules else node.module for name in names if {name, node.module} & modules)
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules


def _members(of: ast.ClassDef) -> Iterator[str]:
    for node in of.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name
            yield from (
                each.attr
                for each in ast.walk(node)
                if isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and isinstance(each.value, ast.Name)
                and each.value.id == "self"
            )
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


def _room(module: str, within: str) -> str:
    return module[len(within) + 1 :].partition(".")[0] if module.startswith(f"{within}.") else ""


def _reached(name: str, graph: Graph) -> Set[str]:
    found: Set[str] = set()
    waiting = [name]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        draw(rooms(imports()), Path(sys.argv[1]))
    for what, number in figures().items():
        print(f"{what:50}{number:>7,}")
