"""Places in a model, as messages name them: a line of its own code, or else one of its modules."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from types import FrameType
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.torch_names.files import PASSING_ON
from ignite_ipu.torch_names.modules import DETECTION_OF_CAUSAL_MASKS, all_named_modules

TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_NOT_USER_CODE = (TORCH, _OURS + os.sep, contextlib.__file__, "<frozen")
_PACKAGE = "ignite_ipu."
ACCESSORS = ("__get__", "__set__", "__delete__")
_LOOPS = ("ignite", "accelerate")  # they call models

# Functions of PyTorch that read a tensor, and how a model does without, by file and name.
_REMEDIES = {
    ("nn/modules/batchnorm.py", "forward"): (
        "With momentum=None the layer reads how many batches it has seen: give it a momentum, a number."
    ),
    ("nn/modules/transformer.py", DETECTION_OF_CAUSAL_MASKS): (
        "PyTorch looks whether the mask is causal only where it is not told: pass is_causal=True or False along with "
        "mask (tgt_is_causal with tgt_mask, src_is_causal with nn.Transformer's src_mask)."
    ),
    ("nn/modules/transformer.py", "forward"): (  # of PyTorch 2.0, whose nn.Transformer cannot be told
        "PyTorch looks whether an encoder's mask is causal only where it is not told: pass is_causal=True or False "
        "along with mask; in place of nn.Transformer, call its encoder so and then its decoder."
    ),
}
_KEEP_IN_TENSORS = "Keep the computation in tensors (torch.where makes a choice)."


def called(model: nn.Module, excludes: Tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a model and return its result; frames from here on inwards are the model's.

    `_module` and `_line` find its arguments in its frame: the model, and parts of the names of files not the user's.
    """
    return model(*args, **kwargs)


def here() -> str:
    """Return the innermost line of the model's own code that is running, "at file:line", or the module.

    Where neither is the user's, it is the line that the model is called at.
    """
    frames, call = _running()
    return _line(frames, call) or _module(frames, call) or _caller(call)


def of_error(error: BaseException) -> str:
    """Return the innermost line of the user's code that an error has passed, "at file:line"; "in forward" for none."""
    passed = ((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    own = [f"at {file}:{line}" for file, line in passed if not file.startswith(_NOT_USER_CODE)]
    return own[-1] if own else "in forward"


def of_read() -> Tuple[str, str]:
    """Return the place where a tensor's value is read, the function of PyTorch if it is one, and an alternative."""
    frames, call = _running()
    if not frames or not frames[0].f_code.co_filename.startswith(TORCH):
        return here(), _KEEP_IN_TENSORS
    inner, name = frames[0], frames[0].f_code.co_name
    within = os.path.relpath(inner.f_code.co_filename, TORCH).replace(os.sep, "/")
    owner = inner.f_locals.get("self")
    function = name if owner is None else f"{type(owner).__name__}.{name}"
    around = [_module(frames, call), _line(frames, call)]
    parts = [f"in {function} of torch ({within}:{inner.f_lineno})", *(around if any(around) else [_caller(call)])]
    return ", ".join(part for part in parts if part), _REMEDIES.get((within, name), _KEEP_IN_TENSORS)


def _running() -> Tuple[List[FrameType], Optional[FrameType]]:
    """Return the frames of the model's call, innermost first, without those of the trace; and that of `called`."""
    frames: List[FrameType] = []
    for frame in _outward(sys._getframe(1)):
        file = frame.f_code.co_filename
        if frame.f_code is called.__code__:
            return frames, frame
        if is_users(file) or (file.startswith(TORCH) and file not in PASSING_ON):
            frames.append(frame)
    return frames, None


def _outward(frame: Optional[FrameType]) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _line(frames: Sequence[FrameType], call: Optional[FrameType]) -> str:
    place = source(() if call is None else call.f_locals["excludes"], frames)
    return "" if place is None else f"at {place[0]}:{place[1]}"


def _module(frames: Sequence[FrameType], call: Optional[FrameType]) -> str:
    if call is None:
        return ""
    names = {id(module): name for name, module in all_named_modules(call.f_locals["model"])}
    for frame in frames:
        module = frame.f_locals.get("self")
        if id(module) in names:
            # This package puts classes of its own around a model.
            kind = next(kind for kind in type(module).__mro__ if not kind.__module__.startswith(_PACKAGE))
            if kind is not nn.Module:
                name = names[id(module)]
                return f"in the module {name!r} ({kind.__name__})" if name else f"in {kind.__name__}"
    return ""


def _caller(call: Optional[FrameType]) -> str:
    for frame in _outward(call):
        library = str(frame.f_globals.get("__name__")).partition(".")[0]
        if is_users(frame.f_code.co_filename) and library not in _LOOPS:
            return f"in a call at {frame.f_code.co_filename}:{frame.f_lineno}"
    return "in the model"


def name_of(func: Callable[..., Any]) -> str:
    """Return an operator's name, a property's for its accessors and the overloaded one's for an overload."""
    if isinstance(func, functools.partial):
        return name_of(func.func)
    name = getattr(func, "__name__", type(func).__name__)
    if name in ACCESSORS:
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    packet = getattr(func, "overloadpacket", None)  # torch.ops.aten.add.Tensor
    return str(getattr(packet, "__name__", name))


@functools.lru_cache(maxsize=None)
def identifier(name: str) -> str:
    """Return a Python identifier that reads like `name`."""
    return "".join(character if character.isalnum() else "_" for character in name).strip("_") or "value"


def source(excludes: Sequence[str], frames: Optional[Sequence[FrameType]] = None) -> Optional[Tuple[str, int]]:
    """Return file and line of the innermost frame, of all by default, that is the user's own code; None without any."""
    for frame in frames or ():
        if _is_own(frame, excludes):
            return frame.f_code.co_filename, frame.f_lineno
    outer: Optional[FrameType] = sys._getframe(1) if frames is None else None
    while outer is not None:  # for each operator of a trace
        if _is_own(outer, excludes):
            return outer.f_code.co_filename, outer.f_lineno
        outer = outer.f_back
    return None


def _is_own(frame: FrameType, excludes: Sequence[str]) -> bool:
    file = frame.f_code.co_filename
    return is_users(file) and not any(part in file for part in excludes)


@functools.lru_cache(maxsize=None)
def is_users(file: str) -> bool:
    """Return whether a file is neither PyTorch's nor this package's."""
    return not file.startswith(_NOT_USER_CODE)
