"""What can go wrong with a captured step.

RuntimeError
 +-- CaptureError              a step that cannot be run as one device step
 |    +-- EarlyReadError       a value was asked for before it exists
 +-- IPUOutOfMemoryError       a program that does not fit
"""

from __future__ import annotations

__all__ = ["CaptureError", "EarlyReadError", "IPUOutOfMemoryError"]


class CaptureError(RuntimeError):
    """A training step that cannot run as one device step."""


class EarlyReadError(CaptureError):
    """A value of the captured step was read before the step has run."""


class IPUOutOfMemoryError(RuntimeError):
    """A program or its data that do not fit the device.

    The message ends the way memory-retry helpers such as accelerate's `find_executable_batch_size` look for.
    """
