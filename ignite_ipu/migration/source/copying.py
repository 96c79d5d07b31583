"""Copies of what stands beside the programs of a code base: configurations, data, links."""

from __future__ import annotations

import os
import shutil
import stat
from typing import Collection, Iterator, Tuple

from ignite_ipu.migration.source.discovery import SKIPPED, is_environment

# What tools keep for themselves and make again.
_LEFT_OUT = {
    *SKIPPED,
    ".git",
    ".hg",
    ".svn",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".tox",
}


def copy_rest(top: str, output: str, written: Collection[str]) -> Iterator[Tuple[str, str]]:
    """Copy what is below a folder, with its permissions; links within it lead to the copies, others where they did.

    Args:
        top: The folder.
        output: Where to.
        written: Names, relative to both, of what is there already.

    Yields:
        Each path that could not be copied, and why.
    """
    for folder, folders, files in os.walk(top):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        inside = os.path.relpath(folder, top)
        try:
            os.makedirs(os.path.join(output, inside), exist_ok=True)
        except OSError as error:
            yield folder, f"is not copied: {error.strerror}"
            folders[:] = []
            continue
        for name in sorted([*files, *links]):
            relative = os.path.normpath(os.path.join(inside, name))
            if relative not in written:
                try:
                    _copy(os.path.join(folder, name), os.path.join(output, relative), top)
                except OSError as error:
                    yield os.path.join(folder, name), f"is not copied: {error.strerror or error}"
        kept = (name for name in folders if name not in links and name not in _LEFT_OUT)
        folders[:] = sorted(name for name in kept if not is_environment(os.path.join(folder, name)))


def _copy(path: str, destination: str, top: str) -> None:
    link, mode = os.path.islink(path), os.lstat(path).st_mode
    if not link and not stat.S_ISREG(mode):
        raise OSError("it is no regular file")
    if os.path.lexists(destination):
        os.unlink(destination)  # never written through, should it be a link
    if not link:
        shutil.copy2(path, destination)
        return
    target, leads_to = os.readlink(path), os.path.realpath(path)
    root = os.path.realpath(top)
    if leads_to != root and not leads_to.startswith(root + os.sep):
        target = leads_to
    elif os.path.isabs(target):
        target = os.path.relpath(leads_to, os.path.realpath(os.path.dirname(path)))
    os.symlink(target, destination)
