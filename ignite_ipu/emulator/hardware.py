"""What the host can say about IPUs.

The emulator has no hardware and says so. Programs and frameworks that refuse to start without any can be shown the
machine that `IGNITE_IPU_EMULATED_IPUS` describes: with that variable set, its IPUs count as present.
"""

from __future__ import annotations

import os

from ignite_ipu.emulator import machine

_MODEL_VARIABLES = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
_EMULATED_VERSION = 2


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Tell whether a device with that many IPUs exists: only on a described machine, and not with an IPU model."""
    return _machine_described() and num_ipus <= machine.emulated_ipus()


def ipuHardwareVersion() -> int:
    """Return the version of the described machine's IPUs, 2 (Mk2).

    Raises:
        AssertionError: No machine is described.
    """
    if not _machine_described():
        raise AssertionError(
            "No IPU hardware available: models run on the emulator. Set "
            f"{machine.IPUS_VARIABLE} to let it stand for a machine with that many."
        )
    return _EMULATED_VERSION


def poptorchAtExit() -> None:
    """Do what PopTorch does when the interpreter ends: nothing is left to do, since devices live in this process."""


def _machine_described() -> bool:
    return machine.IPUS_VARIABLE in os.environ and not any(
        os.environ.get(name, "0") not in ("", "0") for name in _MODEL_VARIABLES
    )
