"""`torch.optim.swa_utils.update_bn`: forward passes in training mode without gradients, which only the host makes."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable

import torch.optim.swa_utils

from ignite_ipu.natively import natively
from ignite_ipu.running.journal import Journal
from ignite_ipu.running.ownership import ScriptCode
from ignite_ipu.running.patches import Patches

__all__ = ["substitute_averages"]


def substitute_averages(patches: Patches, code: ScriptCode, journal: Journal) -> None:
    """Let the script compute the batch statistics of an averaged model, which no update does."""
    owner: Any = torch.optim.swa_utils
    patches.set_everywhere("torch", owner.update_bn, _on_the_host(owner.update_bn, code, journal))


def _on_the_host(original: Callable[..., Any], code: ScriptCode, journal: Journal) -> Any:
    @functools.wraps(original)
    def update_bn(*args: Any, **kwargs: Any) -> Any:
        line = code.line_of(sys._getframe(1))
        if line is None:
            return original(*args, **kwargs)
        journal.note(line, "update_bn()", "forward passes on the host")
        with natively():
            return original(*args, **kwargs)

    return update_bn
