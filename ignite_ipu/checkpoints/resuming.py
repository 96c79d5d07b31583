"""Going on from the newest complete checkpoint of a folder."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import torch
from torch import nn

from ignite_ipu.checkpoints.reading import check_complete, read_checkpoint
from ignite_ipu.checkpoints.writing import copied
from ignite_ipu.errors import CheckpointError, listed, logger

_SHOWN = 8
_LARGE = (nn.Module, torch.optim.Optimizer)

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
            logger.warning("Passing over a file that is no complete checkpoint: %s", error)
            broken.append(path.name)
        else:
            return path
    if broken:
        raise CheckpointError(
            f"None of the checkpoints in {folder} is complete: {', '.join(broken)}. Training from the start would "
            'overwrite them. Move them away first, or pass resume="never".'
        )
    return None


def resume_from(folder: Folder, to_load: Mapping[str, Any], resume: Union[str, Folder] = "auto") -> Optional[Path]:
    """Load the objects of a run from its newest complete checkpoint; returns its path, None when there is none.

    Call it after everything is created and before `trainer.run`; the same program then starts a run and goes on with
    it. The trainer continues in the middle of an epoch with the very batch that would have come next.

    Args:
        folder: Where the run writes its checkpoints.
        to_load: The `to_save` of Ignite's `Checkpoint`.
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
    logger.info("Going on from %s.", path)
    return path


def load_checkpoint(path: Folder, to_load: Mapping[str, Any]) -> None:
    """Load objects by their names in a checkpoint, all of them or none with a `CheckpointError`."""
    try:
        content = read_checkpoint(path)
    except OSError as error:
        raise CheckpointError(
            f"{os.fspath(path)} cannot be read, and nothing was loaded: {error.strerror or error}. Name a checkpoint "
            'that is there, or pass resume="auto" for the newest one of the folder.'
        ) from error
    found = _differences(to_load, content)
    if found:
        raise CheckpointError(f"{os.fspath(path)} does not fit, and nothing was loaded: {'; '.join(found)}.")
    before: Dict[str, Any] = {}
    name = ""
    try:
        # Large ones come last.
        for name, target in sorted(to_load.items(), key=lambda item: isinstance(item[1], _LARGE)):
            before[name] = copied(target.state_dict())
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


def _age(path: Path) -> Tuple[int, int]:
    # The clock of some file systems is coarse; Ignite puts the iteration into the name.
    written = 0
    with contextlib.suppress(OSError):
        written = path.stat().st_mtime_ns
    return written, int(re.findall(r"\d+", f"0{path.stem}")[-1])


def _differences(to_load: Mapping[str, Any], content: Any) -> List[str]:
    """Return a sentence for each object that a checkpoint's content does not fit; none if all fit."""
    if not isinstance(content, Mapping):
        return [f"it holds a {type(content).__name__}, not a dictionary of states"]
    found = []
    for name, target in to_load.items():
        state = content.get(name)
        if name not in content:
            found.append(f"it has no {name!r}; it has {sorted(map(str, content))}")
        elif not isinstance(state, Mapping):
            found.append(f"its {name!r} is a {type(state).__name__}, not a dictionary")
        elif isinstance(target, nn.Module):
            found += [f"its {name!r}: {text}" for text in _of_module(target, state)]
        elif isinstance(target, torch.optim.Optimizer):
            found += [f"its {name!r}: {text}" for text in _of_optimizer(target, state)]
    return found


def _of_module(module: nn.Module, state: Mapping[str, Any]) -> List[str]:
    own = module.state_dict()
    texts = []
    missing, strange = [key for key in own if key not in state], [key for key in state if key not in own]
    if missing:
        texts.append(f"lacks {listed(missing, _SHOWN)}")
    if strange:
        texts.append(f"has {listed(strange, _SHOWN)}, which the model has not")
    shapes = [
        f"{key} {_shape(state[key])} instead of {_shape(value)}"
        for key, value in own.items()
        if key in state and isinstance(value, torch.Tensor) and _shape(state[key]) != _shape(value)
    ]
    if shapes:
        texts.append(f"other shapes: {listed(shapes, _SHOWN)}")
    return texts


def _of_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> List[str]:
    groups, entries = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not isinstance(entries, Mapping):
        return ["is not the state of an optimizer"]
    sizes = [_size(group) for group in groups]
    own = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != own:
        return [f"groups of {sizes} parameters instead of {own}"]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    shape_of: Dict[Any, Any] = {number: _shape(parameter) for number, parameter in zip(numbers, parameters)}
    shapes = [
        f"{slot} of parameter {number} {_shape(value)} instead of {shape_of[number]}"
        for number, slots in entries.items()
        if number in shape_of and isinstance(slots, Mapping)
        for slot, value in slots.items()
        if isinstance(value, torch.Tensor) and value.dim() and _shape(value) != shape_of[number]
    ]
    strange = [
        str(number) for number, slots in entries.items() if number not in shape_of or not isinstance(slots, Mapping)
    ]
    texts = [f"other shapes: {listed(shapes, _SHOWN)}"] if shapes else []
    return texts + ([f"state of parameters that there are not: {listed(strange, _SHOWN)}"] if strange else [])


def _size(group: Any) -> int:
    numbers = group.get("params") if isinstance(group, Mapping) else None
    return len(numbers) if isinstance(numbers, list) and all(type(number) is int for number in numbers) else -1


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
