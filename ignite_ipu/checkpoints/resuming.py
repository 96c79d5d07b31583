"""Going on from the newest complete checkpoint of a folder."""

from __future__ import annotations

import copy
import logging
import os
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn

from ignite_ipu.checkpoints.matching import differences
from ignite_ipu.checkpoints.plain_states import without_methods
from ignite_ipu.checkpoints.reading import check_complete, read_checkpoint
from ignite_ipu.errors import CheckpointError

__all__ = ["load_checkpoint", "newest_checkpoint", "resume_from"]

_logger = logging.getLogger("ignite_ipu")
_NUMBER = re.compile(r"\d+")

Folder = Union[str, "os.PathLike[str]"]


def newest_checkpoint(folder: Folder) -> Optional[Path]:
    """Return the complete checkpoint that was written last; None if the folder has no file `*.pt` or does not exist.

    Raises:
        CheckpointError: It has such files, but none is complete.
    """
    broken: List[str] = []
    for path in sorted(Path(folder).expanduser().glob("*.pt"), key=_age, reverse=True):
        try:
            check_complete(path)
        except (CheckpointError, OSError) as error:
            _logger.warning("Passing over a file that is no complete checkpoint: %s", error)
            broken.append(path.name)
        else:
            return path
    if broken:
        raise CheckpointError(
            f"None of the checkpoints in {folder} is complete: {', '.join(broken)}. Training from the start would "
            'overwrite what they may tell: move them away first, or pass resume="never".'
        )
    return None


def resume_from(folder: Folder, to_load: Mapping[str, Any], resume: Union[str, Folder] = "auto") -> Optional[Path]:
    """Load the objects of a run from its newest complete checkpoint; returns its path, None when there is none.

    Call it after everything is created and before `trainer.run`; the same program then starts a run and goes on with
    it. The trainer continues in the middle of an epoch with the very batch that would have come next.

    Args:
        folder: Where the run writes its checkpoints.
        to_load: What Ignite's `Checkpoint` was given as `to_save`.
        resume: "auto"; "never" to start afresh; or the path of the checkpoint to take.

    Raises:
        CheckpointError: The checkpoint is not there, not complete, not safe to read, or of another model. No object was
            changed.
    """
    if resume == "never":
        return None
    path = newest_checkpoint(folder) if resume == "auto" else Path(resume).expanduser()
    if path is None:
        return None
    load_checkpoint(path, to_load)
    _logger.info("Going on from %s.", path)
    return path


def load_checkpoint(path: Folder, to_load: Mapping[str, Any]) -> None:
    """Load objects from a checkpoint, all of them or none, also when it is interrupted.

    Args:
        path: The file.
        to_load: Objects by their name in it.

    Raises:
        CheckpointError: It cannot be read, is not complete, not safe to read, or does not fit. No object was changed.
    """
    try:
        content = read_checkpoint(path)
    except OSError as error:
        raise CheckpointError(
            f"{os.fspath(path)} cannot be read, and nothing was loaded: {error.strerror or error}. Name a checkpoint "
            'that is there, or pass resume="auto" for the newest one of the folder.'
        ) from error
    found = differences(to_load, content)
    if found:
        raise CheckpointError(f"{os.fspath(path)} does not fit, and nothing was loaded: {'; '.join(found)}.")
    before: Dict[str, Any] = {}
    name = ""
    try:
        for name, target in _large_ones_last(to_load):
            before[name] = copy.deepcopy(without_methods(target.state_dict()))
            target.load_state_dict(content[name])
    except BaseException as error:
        for changed, state in before.items():
            to_load[changed].load_state_dict(state)
        if not isinstance(error, Exception):
            raise
        raise CheckpointError(
            f"{os.fspath(path)} does not fit, and nothing was loaded: its {name!r} was refused: "
            f"{type(error).__name__}: {error}"
        ) from error


def _large_ones_last(to_load: Mapping[str, Any]) -> List[Tuple[str, Any]]:
    return sorted(to_load.items(), key=lambda item: isinstance(item[1], (nn.Module, torch.optim.Optimizer)))


def _age(path: Path) -> Tuple[int, int]:
    # The clock of some file systems is coarse; Ignite puts the iteration into the name.
    numbers = _NUMBER.findall(path.stem)
    try:
        written = path.stat().st_mtime_ns
    except OSError:
        written = 0
    return written, int(numbers[-1]) if numbers else 0
