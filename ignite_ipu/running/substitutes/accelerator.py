"""accelerate as a script sees it: its `Accelerator` is an `IPUAccelerator`."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Optional

from ignite_ipu.deferred.settings import CaptureObserver
from ignite_ipu.running.patches import Substitutes

__all__ = ["substitute_accelerator"]


def substitute_accelerator(
    substitutes: Substitutes, observer: CaptureObserver, replication_factor: Optional[int] = None
) -> None:
    """Let `accelerate.Accelerator` be an `IPUAccelerator` while the script runs.

    Args:
        substitutes: What the script's calls mean instead.
        observer: Follows the models that it prepares.
        replication_factor: Replicas that share the micro-batches of an update.
    """
    import accelerate

    from ignite_ipu.deferred.accelerator import IPUAccelerator

    class Substitute(IPUAccelerator):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            substitutes.maps(sys._getframe(1), "Accelerator()", "IPUAccelerator()", of_libraries=True)
            if replication_factor is not None:
                kwargs["replication_factor"] = replication_factor
            super().__init__(*args, **kwargs)
            self.capture_settings = dataclasses.replace(self.capture_settings, observer=observer)

    Substitute.__name__, Substitute.__qualname__ = IPUAccelerator.__name__, IPUAccelerator.__qualname__
    Substitute.__module__ = IPUAccelerator.__module__
    substitutes.set_everywhere("accelerate", accelerate.Accelerator, Substitute)
