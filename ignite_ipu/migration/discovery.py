"""The files that a list of paths stands for: directories are walked, and nothing outside them is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Iterator, List, Sequence, Set, Tuple

SUFFIXES = (".py", ".ipynb")
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}


@dataclass
class Discovery:
    """What was found.

    Attributes:
        files: Files to read, each with its name relative to the path that led to it, in a stable order.
        skipped: Paths that were passed over, each with the reason.
    """

    files: List[Tuple[str, str]] = field(default_factory=list)
    skipped: List[Tuple[str, str]] = field(default_factory=list)


def discover(paths: Sequence[str]) -> Discovery:
    """Find the Python files and notebooks below `paths`.

    A file that is named itself is always taken, whatever its suffix. Links to places outside a walked directory, and
    links that lead back to one of their own parents, are passed over with a remark. Hidden directories, virtual
    environments and caches are passed over silently.

    Raises:
        FileNotFoundError: A path does not exist.
    """
    found = Discovery()
    seen: Set[str] = set()
    for path in paths:
        if not os.path.lexists(path):
            raise FileNotFoundError(f"No such file or directory: {path}")
        if os.path.isdir(path):
            _walk(path, path, os.path.realpath(path), found, seen, {os.path.realpath(path)})
        elif not os.path.exists(path):
            found.skipped.append((path, "is a broken link"))
        else:
            _take(path, os.path.basename(path), found, seen)
    return found


def _take(path: str, relative: str, found: Discovery, seen: Set[str]) -> None:
    real = os.path.realpath(path)
    if real not in seen:
        seen.add(real)
        found.files.append((path, relative))


def _walk(top: str, path: str, root: str, found: Discovery, seen: Set[str], above: Set[str]) -> None:
    for entry in _entries(path, found):
        here = os.path.join(path, entry.name)
        wanted = entry.name.endswith(SUFFIXES)
        is_directory = os.path.isdir(here)
        if entry.name.startswith(".") or entry.name in _SKIPPED or not (wanted or is_directory):
            continue
        real = os.path.realpath(here)
        if entry.is_symlink():
            if not os.path.exists(here):
                found.skipped.append((here, "is a broken link or a link to itself"))
                continue
            if os.path.commonpath([root, real]) != root:
                found.skipped.append((here, f"is a link to {real}, outside {top}"))
                continue
        if not is_directory:
            _take(here, os.path.relpath(here, top), found, seen)
        elif real in above:
            found.skipped.append((here, "is a link to a directory that contains it"))
        elif not os.path.exists(os.path.join(here, "pyvenv.cfg")):
            _walk(top, here, root, found, seen, above | {real})


def _entries(path: str, found: Discovery) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            yield from sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        found.skipped.append((path, f"cannot be read: {error.strerror}"))
