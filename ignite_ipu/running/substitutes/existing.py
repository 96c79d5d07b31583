"""Objects that a program made before its calls were substituted, where `ignite_ipu.auto` is imported late."""

from __future__ import annotations

import gc
import sys
from typing import Any, List, NamedTuple

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
    found = Existing([], [])
    accelerators = [each for each in accelerator.__subclasses__() if substitutes.code.owns(_file_of(each))]
    gc.collect()  # an object that nothing uses any more is not too late
    for each in gc.get_objects():
        kind = type(each)  # `__class__` of an object may be computed
        if issubclass(kind, torch.optim.Optimizer):
            found.optimizers.append(each)
        elif issubclass(kind, nn.Module):
            found.modules.append(each)
        elif issubclass(kind, accelerator) and not kind.__module__.startswith("ignite_ipu."):
            accelerators.append(each)
    if accelerators:
        raise substitutes.refusal(
            "Accelerator", "it was used before ignite_ipu.auto was imported. Import ignite_ipu.auto above that line."
        )
    return found


def _file_of(kind: type) -> str:
    return str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<unknown>")
