"""End of a process whose parent has died, with all that it would leave behind.

A pipe to the parent does not tell by itself: every process that the parent forks holds it open, and the server that
multiprocessing forks processes from lives as long as these do. So each process that loads data also looks once a second
whether the one that it works for is still there.
"""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import shutil
import tempfile
import threading
from multiprocessing import parent_process, process
from typing import Any, Callable, Iterator, Optional

from ignite_ipu.emulator.data.worker.process_group import is_running, kill_group

_LOOK_SECONDS = 1.0


def end_with_parent(sockets: Optional[str] = None) -> None:
    """Have this process end within seconds of the one that started it, whatever ends that one.

    It takes the group with it that it leads. torch makes shared memory, and takes its name away, while no other thread
    runs, so that this one finds no segment with a name.

    Args:
        sockets: The parent's directory for those of its children, deleted with it; None for one of this process's own.
    """
    current: Any = process.current_process()
    current._config["tempdir"] = sockets  # what multiprocessing asks before it makes one
    arguments = (parent_process(), current._config)
    threading.Thread(target=_watch, args=arguments, name="end with parent", daemon=True).start()


@contextlib.contextmanager
def nameless_sockets() -> Iterator[str]:
    """Let sockets that multiprocessing makes in the `with` block lose their names at its end; gives their directory."""
    current: Any = process.current_process()
    before = current._config.get("tempdir")
    with tempfile.TemporaryDirectory() as folder:
        current._config["tempdir"] = folder
        try:
            yield folder
        finally:
            current._config["tempdir"] = before


class Ending:
    """A loader's `worker_init_fn` with `end_with_parent` before it; made by the process that starts the workers.

    Args:
        given: The loader's own.
    """

    def __init__(self, given: Optional[Callable[[int], None]]) -> None:
        self._given = given
        self._sockets = multiprocessing.util.get_temp_dir()

    def __call__(self, worker: int) -> None:
        end_with_parent(self._sockets)
        if self._given is not None:
            self._given(worker)


def _watch(parent: Any, settings: Any) -> None:
    while parent.is_alive() and is_running(parent.pid):
        parent.join(_LOOK_SECONDS)
    if os.getpgrp() == os.getpid():
        kill_group(os.getpid())
    if settings["tempdir"]:
        shutil.rmtree(settings["tempdir"], ignore_errors=True)
    os._exit(1)
