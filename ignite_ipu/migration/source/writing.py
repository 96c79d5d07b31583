"""Results written: programs are replaced as a whole or not at all, and files beside them are copied."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Collection, Iterator, Tuple

from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.errors import WriteError
from ignite_ipu.migration.source.discovery import SKIPPED, is_environment

# Files that tools keep for themselves and make again.
_TOOLS = ".git .hg .svn .mypy_cache .pytest_cache .ruff_cache .ipynb_checkpoints .tox"
_LEFT_OUT = SKIPPED.union(_TOOLS.split())


def replace_file(path: str, data: bytes, expected: bytes) -> None:
    """Give a file a new content, by renaming a complete and synced copy onto it.

    Its permissions are kept, and a link keeps pointing to it. At every moment the path holds the old content, from
    which the new one was made and which is `expected`, or the new one. A `WriteError` if the file is read-only or has
    changed meanwhile, or if the system refuses.
    """
    real = os.path.realpath(path)
    try:
        mode = stat.S_IMODE(os.stat(real).st_mode)
        if not mode & stat.S_IWUSR or not os.access(real, os.W_OK):
            raise WriteError("is read-only")
        with open(real, "rb") as file:
            if file.read() != expected:
                raise WriteError("has changed since it was read")
        _write(real, data, mode)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}") from None


def write_new_file(path: str, data: bytes, mode: int) -> None:
    """Write a file that need not exist yet, and its directories; raises `WriteError` where the system refuses."""
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        _write(path, data, mode)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}") from None


def _write(path: str, data: bytes, mode: int) -> None:
    with whole_file(Path(path), mode) as file:
        file.write(data)


def copy_rest(top: str, output: str, written: Collection[str]) -> Iterator[Tuple[str, str]]:
    """Copy the contents of a folder, with their permissions; links within it lead to the copies, others where they did.

    Yields each path that could not be copied, with the reason; `written` are the relative names of existing files.
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
