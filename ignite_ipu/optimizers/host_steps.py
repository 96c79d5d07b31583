"""A warning, at their first step, about optimizers that step on the host in a program that was moved to IPUs.

A loop of an installed package, or one in a file that was not moved, trains a model on the host without an error: the
model is an ordinary one there. A program that calls `host_device()` means to train on IPUs.
"""

from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ignite_ipu.errors import logger
from ignite_ipu.program.user_code import OURS, Owner, current_line, owner_of
from ignite_ipu.torch_names.optimizers import pre_hooks_of

_OURS = ("ignite_ipu.", "poptorch.")
_known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
_watches = False


def warn_of_host_steps() -> None:
    """Log a warning at the first step of each optimizer that neither an engine nor a captured loop has."""
    global _watches
    if not _watches:
        _watches = True
        register_optimizer_step_pre_hook(_look)


def _look(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if optimizer in _known:
        return
    _known.add(optimizer)
    hooked = any(getattr(hook, "__module__", "").startswith(_OURS) for hook in pre_hooks_of(optimizer).values())
    if hooked or type(optimizer).__module__.startswith(_OURS) or _is_called_by_this_library():
        return
    logger.warning(
        "%s.step() at %s trains on the host: no engine and no captured loop has this optimizer. Give it to ipu_prepare "
        "together with its model, or import ignite_ipu.auto at the top of the program, which captures loops of "
        "installed packages, too.",
        type(optimizer).__name__,
        current_line(),
    )


def _is_called_by_this_library() -> bool:
    """Return whether PyTorch's step was called by an engine or a captured loop, which have made their call before."""
    frame: Optional[FrameType] = sys._getframe(2)
    while frame is not None and owner_of(frame.f_code.co_filename) is Owner.LIBRARY:
        if frame.f_code.co_filename.startswith(OURS):
            return True
        frame = frame.f_back
    return False
