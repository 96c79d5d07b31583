"""`autocast` and `GradScaler`: captured loops run in single precision, which needs neither."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable

import torch
from torch.amp.autocast_mode import autocast

from ignite_ipu.running.patches import Substitutes

__all__ = ["substitute_precision"]


def substitute_precision(substitutes: Substitutes) -> None:
    """Switch off the automatic precision that the script asks for, itself or through Ignite."""
    scaler: Any = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)
    for owner, what in ((autocast, "autocast"), (scaler, "GradScaler")):
        substitutes.set(owner, "__init__", _switched_off(owner.__init__, what, substitutes))


def _switched_off(original: Callable[..., Any], what: str, substitutes: Substitutes) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(instance: Any, *args: Any, **kwargs: Any) -> None:
        line, own = substitutes.code.line_behind(sys._getframe(1))
        if not own:
            original(instance, *args, **kwargs)
            return
        given = signature.bind(instance, *args, **kwargs)
        if given.arguments.get("enabled", True):
            substitutes.journal.note(line, f"{what}()", "switched off: the step runs in single precision")
        given.arguments["enabled"] = False
        if what == "autocast":
            # On a machine without a GPU, even switched off it would warn of one that is missing.
            given.arguments.update(device_type="cpu", dtype=torch.bfloat16)
        original(*given.args, **given.kwargs)

    return __init__
