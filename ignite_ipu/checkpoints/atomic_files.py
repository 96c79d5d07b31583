"""Files that hold their old content or the new, never a part of either: written beside their place and moved there."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path
from typing import IO, Iterator, Optional

_TEMPORARY = re.compile(r"\.(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}\.tmp")


@contextlib.contextmanager
def whole_file(path: Path, mode: Optional[int] = None) -> Iterator[IO[bytes]]:
    """Give a file to write a content into, which has its path when all of it is on the disk.

    An exception, such as the `OSError` of a full disk, leaves the earlier content. The directory of `path` exists.
    """
    temporary = path.parent / f".{platform.node()}-{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)  # before there is anything to read
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    # Without this a power failure may undo the renaming.
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove unfinished files in a folder of processes on this host that no longer run."""
    for path in folder.glob(".*.tmp"):
        found = _TEMPORARY.fullmatch(path.name)
        if found and found["host"] == platform.node() and not _runs(int(found["pid"])):
            with contextlib.suppress(OSError):
                path.unlink()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
