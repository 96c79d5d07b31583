"""The IPUs that programs can have on this machine."""

from __future__ import annotations

from typing import Any, Dict

from ignite_ipu import backend
from ignite_ipu.program.options import is_simulated

__all__ = ["available", "describe"]

# PopTorch gives out devices of so many IPUs to one process.
_SIZES = (64, 32, 16, 8, 4, 2, 1)


def available() -> int:
    """Return the number of IPUs of the largest device that one program can have, 0 if there is none."""
    poptorch = backend.poptorch()
    if is_simulated(poptorch.Options()):
        # IPU models have any number.
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
