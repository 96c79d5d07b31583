"""The IPUs that programs can have on this machine."""

from __future__ import annotations

import os
from typing import Any, Dict

from ignite_ipu import backend
from ignite_ipu.options import is_simulated

__all__ = ["available", "describe"]

# PopTorch gives out devices of so many IPUs to one process.
_SIZES = (64, 32, 16, 8, 4, 2, 1)
_DESCRIBED = "IGNITE_IPU_EMULATED_IPUS"


def available() -> int:
    """Return the number of IPUs of the largest device that one program can have, 0 if there is none."""
    poptorch = backend.poptorch()
    # Without a description the emulator has as many as one process can use; IPU models have any number.
    if (backend.is_emulator() and _DESCRIBED not in os.environ) or is_simulated(poptorch.Options()):
        return _SIZES[0]
    return next((size for size in _SIZES if poptorch.ipuHardwareIsAvailable(size)), 0)


def describe() -> Dict[str, Any]:
    """Return what programs ran on."""
    poptorch = backend.poptorch()
    has_hardware = poptorch.ipuHardwareIsAvailable()
    return {
        "backend": backend.name(),
        "poptorch": poptorch.__version__,
        "ipus": available(),
        "hardware version": poptorch.ipuHardwareVersion() if has_hardware else None,
    }
