"""What the host can say about IPUs: the emulator has none, and says so."""

from __future__ import annotations


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """Tell whether a physical device with that many IPUs exists: never, where the emulator runs."""
    return False


def ipuHardwareVersion() -> int:
    """Refuse: there is no hardware whose version could be told.

    Raises:
        AssertionError: Always.
    """
    raise AssertionError("No IPU hardware available: models run on the emulator.")


def poptorchAtExit() -> None:
    """Do what PopTorch does when the interpreter ends: nothing is left to do, since devices live in this process."""
