"""Objects that a program made before its calls were substituted, where `ignite_ipu.auto` is imported late."""

from __future__ import annotations

import gc
import sys
from typing import Any, List, NamedTuple, Set

import torch
from torch import nn

from ignite_ipu.running.patches import Substitutes


class Existing(NamedTuple):
    """Optimizers, and modules that have parameters."""

    optimizers: List[torch.optim.Optimizer]
    modules: List[nn.Module]


class _NotImported:
    """Stands for a class whose module is not imported."""


def existing_objects(substitutes: Substitutes) -> Existing:
    """Return the program's optimizers and models that exist by now.

    Raises:
        RunError: The program has an `Accelerator`, or a class derived from it, whose place an `IPUAccelerator` takes.
    """
    accelerator: Any = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", _NotImported)
    accelerators = [each for each in accelerator.__subclasses__() if substitutes.code.owns(_file_of(each))]
    optimizers, modules = _classes(torch.optim.Optimizer), _classes(nn.Module)
    theirs = {kind for kind in _classes(accelerator) if not kind.__module__.startswith("ignite_ipu.")}
    wanted = optimizers | modules | theirs
    # `__class__` of an object may be computed. Most programs have none of these objects yet.
    objects: List[Any] = []
    if not wanted.isdisjoint(map(type, gc.get_objects())):
        gc.collect()  # an object that nothing uses any more is not too late
        objects = [each for each in gc.get_objects() if type(each) in wanted]
    found = Existing(
        [each for each in objects if type(each) in optimizers], [each for each in objects if type(each) in modules]
    )
    if accelerators or any(type(each) in theirs for each in objects):
        raise substitutes.refusal(
            "Accelerator", "it was used before ignite_ipu.auto was imported. Import ignite_ipu.auto above that line."
        )
    return found


def _classes(base: type) -> Set[type]:
    """Return a class and all that are derived from it."""
    found: Set[type] = set()
    waiting = [base]
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting += type.__subclasses__(kind)
    return found


def _file_of(kind: type) -> str:
    return str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>")
