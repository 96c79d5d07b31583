"""The promises, in groups; one module each."""

from __future__ import annotations

import importlib
from typing import List

from ignite_ipu.selftest.promise import Promise

__all__ = ["every_promise"]

_ORDER = ["device", "operators", "batching", "outputs", "optimizers", "schedules", "weights", "checkpoints"]
_ORDER += ["loaders", "precision", "captured", "pipelines", "faults"]


def every_promise() -> List[Promise]:
    """Return all promises, in the order in which they are checked."""
    groups = [importlib.import_module(f"{__name__}.{name}") for name in _ORDER]
    return [promise for group in groups for promise in group.PROMISES]
