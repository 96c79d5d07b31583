"""The files that a list of paths stands for: directories are walked, and nothing outside them is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Dict, Iterable, Iterator, List, NamedTuple, Sequence, Set, Tuple

from ignite_ipu.errors import UserError

SUFFIXES = (".py", ".ipynb")
SKIPPED = {"__pycache__", "node_modules", "site-packages"}


@dataclass
class Discovery:
    """Files to read, each with its name relative to the path that led to it, in a stable order.

    For a file that links lead to as well, `links` has their names, relative as its own; paths that were passed over are
    `skipped`, each with the reason.
    """

    files: List[Tuple[str, str]] = field(default_factory=list)
    links: Dict[str, List[str]] = field(default_factory=dict)
    skipped: List[Tuple[str, str]] = field(default_factory=list)


def discover(paths: Sequence[str]) -> Discovery:
    """Find the Python files and notebooks below `paths`.

    A file that is named itself is always taken, whatever its suffix. Links to places outside a walked directory, and
    links that lead back to one of their own parents, are passed over with a remark. Hidden directories, virtual
    environments and caches are passed over silently. A path that does not exist is a `UserError`.
    """
    found = Discovery()
    ways: Dict[str, List[_Way]] = {}
    for path in paths:
        if not os.path.lexists(path):
            raise UserError(f"No such file or directory: {path}")
        reached: Iterable[_Way] = [_Way(path, os.path.basename(path), os.path.islink(path))]
        if os.path.isdir(path):
            real = os.path.realpath(path)
            reached = _walk(path, path, real, found, {real}, False)
        elif not os.path.exists(path):
            found.skipped.append((path, "is a broken link"))
            continue
        for way in reached:
            ways.setdefault(os.path.realpath(way.path), []).append(way)
    for same in ways.values():
        chosen = next((way for way in same if not way.linked), same[0])
        found.files.append((chosen.path, chosen.relative))
        links = {way.relative for way in same} - {chosen.relative}
        if links:
            found.links[chosen.path] = sorted(links)
    return found


class _Way(NamedTuple):
    """A path that leads to a file, its relative name, and whether a link is on it."""

    path: str
    relative: str
    linked: bool


def _walk(top: str, path: str, root: str, found: Discovery, above: Set[str], linked: bool) -> Iterator[_Way]:
    for entry in _entries(path, found):
        here = os.path.join(path, entry.name)
        wanted = entry.name.endswith(SUFFIXES)
        is_directory = os.path.isdir(here)
        if entry.name.startswith(".") or entry.name in SKIPPED or not (wanted or is_directory):
            continue
        real = os.path.realpath(here)
        is_link = entry.is_symlink()
        if is_link:
            if not os.path.exists(here):
                found.skipped.append((here, "is a broken link or a link to itself"))
                continue
            if os.path.commonpath([root, real]) != root:
                found.skipped.append((here, f"is a link to {real}, outside {top}"))
                continue
        if not is_directory:
            yield _Way(here, os.path.relpath(here, top), linked or is_link)
        elif real in above:
            found.skipped.append((here, "is a link to a directory that contains it"))
        elif not is_environment(here):
            yield from _walk(top, here, root, found, above | {real}, linked or is_link)


def is_environment(folder: str) -> bool:
    """Return whether a folder is a virtual environment."""
    return os.path.exists(os.path.join(folder, "pyvenv.cfg"))


def _entries(path: str, found: Discovery) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        found.skipped.append((path, f"cannot be read: {error.strerror}"))
