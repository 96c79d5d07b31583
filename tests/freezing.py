"""Leaves the present objects out of garbage collections and of searches for models and tensors among all objects.

After many tests, both take longer than most tests do.
"""

from __future__ import annotations

import gc
from typing import Set

_MANY = 20_000
_held: Set[object] = set()
_looked_at = 0


def freeze() -> None:
    """Leave the present objects out of later collections, at the beginning of a module of tests.

    Nothing where a model has IPUs: if it is dropped later, it would never be collected, nor would its IPUs be free. A
    model that has had IPUs at the previous call, too, is nothing that a test drops.
    """
    held = _collect_and_freeze()
    _held.clear()
    _held.update(held)


def freeze_many() -> None:
    """Leave the present objects out of later collections if there are thousands, as after an import of a library."""
    global _looked_at
    if len(gc.get_objects(generation=2)) > _looked_at + _MANY:
        _collect_and_freeze()
        _looked_at = len(gc.get_objects(generation=2))


def _collect_and_freeze() -> Set[object]:
    from ignite_ipu.emulator.device.machine import machine

    gc.collect()
    held: Set[object] = set(machine().users().values())
    if held <= _held:
        gc.freeze()
    return held
