"""accelerate as a script sees it: its `Accelerator` is an `IPUAccelerator`."""

from __future__ import annotations

import sys
from typing import Any, Optional

from ignite_ipu.running.journal import Journal
from ignite_ipu.running.ownership import ScriptCode
from ignite_ipu.running.patches import Patches

__all__ = ["substitute_accelerator"]


def substitute_accelerator(
    patches: Patches, code: ScriptCode, journal: Journal, replication_factor: Optional[int] = None
) -> None:
    """Let `accelerate.Accelerator` be an `IPUAccelerator` while the script runs.

    Args:
        patches: Where the replaced attributes are kept.
        code: What is the script's own.
        journal: Where substitutions go.
        replication_factor: Replicas that share the micro-batches of an update.
    """
    import accelerate

    from ignite_ipu.deferred.accelerator import IPUAccelerator

    class Substitute(IPUAccelerator):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            line, _ = code.line_behind(sys._getframe(1))
            journal.note(line, "Accelerator()", "IPUAccelerator()")
            if replication_factor is not None:
                kwargs["replication_factor"] = replication_factor
            super().__init__(*args, **kwargs)

    Substitute.__name__, Substitute.__qualname__ = IPUAccelerator.__name__, IPUAccelerator.__qualname__
    Substitute.__module__ = IPUAccelerator.__module__
    patches.set_everywhere("accelerate", accelerate.Accelerator, Substitute)
