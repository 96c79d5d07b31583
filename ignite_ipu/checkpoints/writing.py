"""Checkpoints are written whole, and the ones before them removed after that."""

from __future__ import annotations

import contextlib
import copy
import errno
import operator
import os
import shutil
import types
from collections import OrderedDict
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Protocol, Union

import ignite.distributed as idist
import torch
from ignite.handlers.checkpoint import BaseSaveHandler

from ignite_ipu.checkpoints.atomic_files import remove_unfinished, whole_file
from ignite_ipu.checkpoints.comparable import PLAIN, are_plain
from ignite_ipu.errors import CheckpointError

_DEEPEST = 16


def write_checkpoint(path: Union[str, os.PathLike[str]], content: Any) -> None:
    """Write a checkpoint so that under its name there is the old content or the new, never a part of either.

    Args:
        path: The file; its directory is made if it does not exist.
        content: Objects that `torch.save` can write. Methods that schedulers keep in their state are left out.

    Raises:
        CheckpointError: The disk is full or refuses; earlier files are intact.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(target) as file:
            torch.save(without_methods(content), file)
    except (OSError, RuntimeError) as error:
        raise _explained(error, target) from error


class _Settings(Protocol):
    def save(self, path: Path, partly: bool) -> None: ...


class CheckpointSaver(BaseSaveHandler):
    """Writes checkpoints for Ignite's `Checkpoint`, and never leaves a folder without a complete one.

    Ignite asks to remove the oldest before the newest is written, which loses both if that fails. Here files are
    removed after the next one is on the disk. Unfinished files of killed processes are removed.

    Args:
        folder: Where to; made if it does not exist.
        config: Settings to keep beside the checkpoints in `ipu_config.json`, such as `trainer.config`.

    Raises:
        CheckpointError: The folder cannot be made, or written to.
    """

    def __init__(self, folder: Union[str, os.PathLike[str]], config: Optional[_Settings] = None) -> None:
        self.folder = Path(folder).expanduser()
        self._to_remove: List[Path] = []
        if idist.get_rank() == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                if config is not None:
                    config.save(self.folder, partly=True)
            except OSError as error:
                raise CheckpointError(
                    f"Checkpoints cannot be written to {self.folder}: {error.strerror}. Choose another folder."
                ) from error
            remove_unfinished(self.folder)

    def __call__(
        self, checkpoint: Mapping[str, Any], filename: str, metadata: Optional[Mapping[str, Any]] = None
    ) -> None:
        """Write one; where it cannot be written, all earlier ones are still there."""
        if idist.get_rank() != 0:
            return
        target = self.folder / filename
        write_checkpoint(target, checkpoint)
        while self._to_remove:
            path = self._to_remove.pop()
            if path != target:
                with contextlib.suppress(OSError):
                    path.unlink()

    def remove(self, filename: str) -> None:
        """Remove one as soon as another has been written."""
        self._to_remove.append(self.folder / filename)


def _explained(error: BaseException, target: Path) -> CheckpointError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip().split("\n")[0]
    free = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(target.parent).free
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or (free is not None and free < 1 << 20):
        way_out = f"The disk has {free} bytes left: free some, or choose another folder."
    else:
        way_out = "Choose a folder that can be written to."
    kept = "The file that was there before is intact." if target.exists() else "Earlier checkpoints are intact."
    return CheckpointError(f"The checkpoint {target} was not written: {reason}. {kept} {way_out}")


def without_methods(state: Any, depth: int = 0) -> Any:
    """Return a state without the methods of PyTorch's and Ignite's classes in it; itself, if it has none.

    `OneCycleLR` and `SWALR` of PyTorch 2.0, and Ignite's `ReduceLROnPlateauScheduler`, have a method of their own in
    their state. A file with it would hold the scheduler and its optimizer once more, and nothing could read it without
    running code. The loading process has that method already, and keeps it.
    """
    if depth == _DEEPEST:
        return state
    if isinstance(state, dict):
        kept = {key: without_methods(value, depth + 1) for key, value in state.items() if not _is_method(value)}
        if len(kept) == len(state) and all(kept[key] is value for key, value in state.items()):
            return state
        changed = copy.copy(state)
        changed.clear()
        changed.update(kept)
        return changed
    if type(state) in (list, tuple) and not are_plain(state):
        items = [without_methods(item, depth + 1) for item in state]
        return state if all(map(operator.is_, items, state)) else type(state)(items)
    return state


def copied(state: Any) -> Any:
    """Return a deep copy of a state, without the methods that `without_methods` leaves out.

    Lists of numbers, such as random states, are copied as a whole.
    """
    return _copied(state, {})


def _copied(state: Any, known: Dict[int, Any]) -> Any:
    kind = type(state)
    if kind in PLAIN:
        return state
    if id(state) in known:
        return known[id(state)]
    if kind is dict or (kind is OrderedDict and not vars(state)):  # that of a module has attributes
        made = known[id(state)] = kind()
        made.update([(key, _copied(value, known)) for key, value in state.items() if not _is_method(value)])
        return made
    if kind is list:
        items: List[Any] = []
        known[id(state)] = items
        items += state if are_plain(state) else [_copied(item, known) for item in state]
        return items
    return copy.deepcopy(without_methods(state), known)


def _is_method(value: Any) -> bool:
    is_static = isinstance(value, types.FunctionType) and "." in value.__qualname__
    is_method = is_static or isinstance(value, types.MethodType)
    return is_method and str(value.__module__).partition(".")[0] in ("torch", "ignite")
