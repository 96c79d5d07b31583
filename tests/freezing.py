"""Leaves the present objects out of garbage collections, which after many tests take longer than most tests do."""

from __future__ import annotations

import gc


def freeze() -> None:
    """Leave the present objects out of later collections.

    Nothing where a model has IPUs: if it is dropped later, it would never be collected, nor would its IPUs be free.
    """
    from ignite_ipu.emulator.device.machine import machine

    gc.collect()
    if not machine().users():
        gc.freeze()
