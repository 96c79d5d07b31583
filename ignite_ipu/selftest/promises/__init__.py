"""The promises, in groups; one module each.

A module's public functions are its programs, under their names, and their docstrings what is promised on its `PAGE`.
Programs that are made of others stand in its `MORE`.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Iterator, List

from ignite_ipu.selftest.promise import Promise

_ORDER = ["device", "operators", "batching", "outputs", "optimizers", "schedules", "weights", "checkpoints"]
_ORDER += ["loaders", "precision", "captured", "pipelines", "faults"]


def every_promise() -> List[Promise]:
    """Return all promises, in the order in which they are checked."""
    return [promise for group in _ORDER for promise in _promises(group)]


def _promises(group: str) -> Iterator[Promise]:
    module = importlib.import_module(f"{__name__}.{group}")
    yield from getattr(module, "MORE", ())
    for name, program in vars(module).items():
        if inspect.isfunction(program) and program.__module__ == module.__name__ and not name.startswith("_"):
            needed = {"page": module.PAGE, **getattr(program, "needs", {})}
            yield Promise(f"{group}.{name.replace('_', '-')}", program.__doc__ or "", program=program, **needed)
