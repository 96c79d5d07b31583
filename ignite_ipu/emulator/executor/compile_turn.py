"""Processes that train one model together compile one after the other, so that all but the first hit the cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from typing import IO, Iterator

from torch import nn

from ignite_ipu.emulator.files.cache import directory_of
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.trace.annotations import module_repr


@contextlib.contextmanager
def compile_turn(options: Options, model: nn.Module) -> Iterator[None]:
    """Hold the lock on compiling `model` in the `with` block; with one process there is none.

    The lock is a file in the executable cache, named after the model. It lists the processes that are through; the last
    one deletes it.
    """
    processes = options.Distributed.numProcesses
    if processes <= 1:
        yield
        return
    directory = directory_of(options)
    if directory is None:
        logger.warning(
            "Every one of the %d processes compiles the model by itself: use Options.enableExecutableCaching to let "
            "all but one find it in the cache.",
            processes,
        )
        yield
        return
    with contextlib.suppress(OSError):
        os.makedirs(directory, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise AssertionError(
            f"The executable cache {directory} is not writable, and the processes of a distributed run take turns "
            "there."
        )
    path = os.path.join(directory, hashlib.sha256(module_repr(model).encode()).hexdigest()[:40] + ".lock")
    with _locked(path) as file:
        yield
        through = {*file.read().split(), str(options.Distributed.processId)}
        if len(through) >= processes:
            os.unlink(path)
        else:
            file.truncate(0)
            file.write(" ".join(sorted(through)))


@contextlib.contextmanager
def _locked(path: str) -> Iterator[IO[str]]:
    while True:
        with open(path, "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file.fileno()).st_nlink:  # else its last holder has deleted it while this process waited
                file.seek(0)
                yield file
                return
