"""What the host can say about IPUs: those of the emulated machine are there, unless IPU models stand in for them.

The rules for hardware (powers of two, devices for one program each) hold exactly where the answer is yes.
"""

from __future__ import annotations

from ignite_ipu.emulator import machine
from ignite_ipu.emulator.options import ipu_model

_EMULATED_VERSION = 2


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Tell whether a device with that many IPUs exists: none does where the environment selects IPU models."""
    return not ipu_model.selected_by_environment() and num_ipus <= machine.emulated_ipus()


def ipuHardwareVersion() -> int:
    """Return the version of the machine's IPUs, 2 (Mk2).

    Raises:
        AssertionError: The environment selects IPU models.
    """
    if ipu_model.selected_by_environment():
        raise AssertionError(
            f"No IPU hardware available: {' or '.join(ipu_model.VARIABLES)} selects IPU models. Unset it."
        )
    return _EMULATED_VERSION


def poptorchAtExit() -> None:
    """Do what PopTorch does when the interpreter ends: nothing is left to do, since devices live in this process."""
