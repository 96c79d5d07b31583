"""The IPUs that a test takes; those that other tests of its process have are left out of account."""

from __future__ import annotations

import gc

from ignite_ipu.emulator.device import machine

_OTHERS = set()


def leave_out_others():
    """Begin a test: what is taken now is another's."""
    gc.collect()
    _OTHERS.clear()
    _OTHERS.update(machine.machine().users())


def taken():
    """Return the IPUs that have been taken since."""
    return set(machine.machine().users()) - _OTHERS
