"""The executable cache: results of a compilation, kept in a directory for the next time.

An entry holds the constants that the compiler computed from other constants (tables, masks, position codes). They take
most of the time of a compilation here. Running `forward` once and writing the graph's Python text is repeated on every
compile, as tracing is in PopTorch. The key covers all dependencies of an executable: the graph with its shapes, the
constants' values, the options, the optimizer's compiled-in values, and the versions of emulator and PyTorch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import time
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional

import torch
from torch import fx, nn

from ignite_ipu.emulator.compiler.fingerprint import NoFingerprint, graph_text, tensor_digest
from ignite_ipu.emulator.compiler.graph import Graph, fold_constants
from ignite_ipu.emulator.device.device import Meter
from ignite_ipu.emulator.files import container
from ignite_ipu.emulator.files.container import DamagedFile
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.trace.annotations import module_repr
from ignite_ipu.emulator.trace.capture import Capture
from ignite_ipu.emulator.version import __version__

MAGIC = b"ignite-ipu executable cache 2\n"
SUFFIX = ".ipucache"
_KEY_LENGTH = 40
_LONGEST_WRITE = 3600.0
_UNFINISHED = rf"\..*{re.escape(SUFFIX)}.*\.tmp"

# They change the place and manner of a run or its reports, not the program.
_NO_PART_OF_THE_KEY = {
    *("compilation_progress_bar_fn", "log_dir", "max_repeat_logs", "random_seed", "model_name", "connection_type"),
    *("ipu_id", "ipu_version", "use_model", "distributed_process_id", "ipuof_configs"),
    *("cachePath", "enableEngineCaching", "engineOptions"),
}


class Entry(NamedTuple):
    """A file of the cache, its last use in seconds since the epoch, its metadata, and its problem.

    There is a problem with damaged entries, which say nothing of themselves.
    """

    path: str
    size: int
    used: float
    about: Dict[str, Any]
    problem: Optional[str]


def directory_of(options: Options) -> Optional[str]:
    """Return the cache directory that the options name; None when caching is off or means nothing."""
    back_end = options._Popart
    if not back_end._value("enableEngineCaching", False) or options._uses_ipu_model():
        return None
    return str(back_end._value("cachePath", "."))


@dataclasses.dataclass
class Lookup:
    """One compile's use of the cache: `fold` finds its entry, `store` writes one if there was none.

    The entry depends on the compile's graph and `context`; listings say `about` of it.
    """

    directory: str
    context: List[str]
    about: Dict[str, Any]
    meter: Meter
    missing: Optional[str] = None  # The key of the entry to write; None, too, where something has no fingerprint.

    def fold(self, capture: Capture) -> Dict[fx.Node, torch.Tensor]:
        """Return the values of nodes that depend on constants alone: from the cache, or computed."""
        found = self._find(capture)
        self.meter.add(**{"cache_misses" if found is None else "cache_hits": 1})
        return fold_constants(capture) if found is None else found

    def store(self, graph: Graph) -> None:
        """Write the entry that was missing."""
        if self.missing is None:
            return
        entry = {
            **self.about,
            "key": self.missing,
            "operators": sum(node.op == "call_function" for node in graph.nodes.nodes),
            "values": dict(graph.folded),
        }
        try:
            os.makedirs(self.directory, exist_ok=True)
            container.write(self._path(self.missing), MAGIC, entry)
        except OSError as error:
            logger.warning("The executable could not be cached in %s: %s.", self.directory, error)

    def _find(self, capture: Capture) -> Optional[Dict[fx.Node, torch.Tensor]]:
        try:
            values = [tensor_digest(value) for value in capture.placeholders.constants.values()]
            text = json.dumps([graph_text(capture.graph), values, *self.context, __version__, torch.__version__])
        except NoFingerprint as reason:
            logger.info("The executable is not cached: it depends on %s.", reason)
            return None
        self.missing = key = hashlib.sha256(text.encode()).hexdigest()
        path = self._path(key)
        try:
            values = _read(path, key)["values"]
            nodes = {node.name: node for node in capture.graph.nodes}
            found = {nodes[name]: value for name, value in values.items() if _fits(nodes.get(name), value)}
            if len(found) != len(values):
                raise DamagedFile("it holds values that the graph has no place for")
            os.utime(path)
        except FileNotFoundError:
            return None
        except (DamagedFile, OSError) as error:
            logger.warning("Cache entry %s is not used, because %s; the model is compiled again.", path, error)
            return None
        logger.info("Executable found in the cache: %s.", path)
        self.missing = None
        return found

    def _path(self, key: str) -> str:
        return os.path.join(self.directory, key[:_KEY_LENGTH] + SUFFIX)


def lookup(options: Options, training: bool, compiled_in: object, name: str, meter: Meter) -> Optional[Lookup]:
    """Return a compile's access to the cache that the options name; None when caching is off.

    The `repr` of `compiled_in` has all that the optimizer contributes; `name` is the model's in listings.
    """
    directory = directory_of(options)
    if directory is None:
        return None
    settings = {key: value for key, value in options.toDict().items() if key not in _NO_PART_OF_THE_KEY}
    context = [repr(training), repr(sorted(settings.items())), repr(options._execution_strategy), repr(compiled_in)]
    return Lookup(directory, context, {"name": name, "training": training}, meter)


@contextlib.contextmanager
def compile_turn(options: Options, model: nn.Module) -> Iterator[None]:
    """Hold the lock on compiling `model` in the `with` block; with one process there is none.

    So processes that train one model together compile one after the other, and all but the first hit the cache. The
    lock is a file in it, named after the model. It lists the processes that are through; the last one deletes it.
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


def entries(directory: str) -> List[Entry]:
    """Return the cache's entries, the least recently used first, with remains of interrupted writes."""
    found = []
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(path)
            about: Dict[str, Any] = {}
            problem = None
            if name.endswith(SUFFIX):
                try:
                    about = _read(path, name[: -len(SUFFIX)])
                except (DamagedFile, PermissionError) as error:
                    problem = str(error)
            elif re.fullmatch(_UNFINISHED, name) and time.time() - status.st_mtime >= _LONGEST_WRITE:
                problem = "a write that was interrupted"
            else:
                continue
            found.append(Entry(path, status.st_size, status.st_mtime, about, problem))
    return sorted(found, key=lambda entry: (entry.used, entry.path))


def _read(path: str, key: str) -> Dict[str, Any]:
    """Return the content of the entry that a key begins like; raises as `container.read` does."""
    entry = container.read(path, MAGIC)
    if not isinstance(entry, dict) or not isinstance(entry.get("values"), dict):
        raise DamagedFile("it holds no executable")
    if str(entry.get("key"))[:_KEY_LENGTH] != key[:_KEY_LENGTH]:
        raise DamagedFile("it was made for another executable")
    return entry


def _fits(node: Optional[fx.Node], value: Any) -> bool:
    if node is None or not isinstance(value, torch.Tensor):
        return False
    return node.meta.get("shape") == tuple(value.shape) and node.meta.get("dtype") == value.dtype
