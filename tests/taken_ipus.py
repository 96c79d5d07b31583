"""The IPUs that a test takes; those that other tests of its process have are left out of account."""

from __future__ import annotations

import gc

from ignite_ipu.emulator.device import machine

_OTHERS = set()


def leave_out_others():
    """Begin a test: IPUs that are taken now belong to another test."""
    gc.collect()
    _OTHERS.clear()
    _OTHERS.update(machine.machine().users())


def taken():
    """Return the IPUs that have been taken since."""
    return set(machine.machine().users()) - _OTHERS
