"""Programs replaced as a whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ignite_ipu.checkpoints.atomic_files import whole_file
from ignite_ipu.errors import WriteError


def replace_file(path: str, data: bytes, expected: bytes) -> None:
    """Give a file a new content, by renaming a complete and synced copy onto it.

    Its permissions are kept, and a link keeps pointing to it. At every moment the path holds the old content or the
    new one.

    Args:
        path: The file.
        data: Its new content.
        expected: The content that the new one was made from.

    Raises:
        WriteError: The file is read-only or has changed meanwhile, or the system refuses.
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
    """Write a file that need not exist yet, and its directories.

    Raises:
        WriteError: The system refuses.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        _write(path, data, mode)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}") from None


def _write(path: str, data: bytes, mode: int) -> None:
    with whole_file(Path(path), mode) as file:
        file.write(data)
