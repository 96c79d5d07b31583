"""Files replaced as a whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile


class WriteError(Exception):
    """A file that was not written; what was there before is still there."""


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
        _rename_onto(real, data, mode)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}") from None


def write_new_file(path: str, data: bytes, mode: int) -> None:
    """Write a file that need not exist yet, and its directories.

    Raises:
        WriteError: The system refuses.
    """
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        _rename_onto(path, data, mode)
    except OSError as error:
        raise WriteError(f"cannot be written: {error.strerror}") from None


def _rename_onto(path: str, data: bytes, mode: int) -> None:
    directory = os.path.dirname(path) or "."
    handle, temporary = tempfile.mkstemp(prefix=".ignite-ipu-", suffix=".tmp", dir=directory)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    # The rename itself is durable only when the directory is.
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
