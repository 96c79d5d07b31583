"""PopART's enumerations of session options, which PopTorch programs pass to `Options._Popart.set`; nothing else."""

from __future__ import annotations

import enum
from typing import Any


class AccumulateOuterFragmentSchedule(enum.IntEnum):
    """Schedule of the optimizer's update over IPUs."""

    Scheduler = 0
    Serial = 1
    OverlapCycleOptimized = 2
    OverlapMemoryOptimized = 3


class SubgraphCopyingStrategy(enum.IntEnum):
    """Moment at which a subgraph's inputs and outputs are copied."""

    OnEnterAndExit = 0
    JustInTime = 1


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module 'popart' has no attribute {name!r}: this is the PopTorch emulator's, which has of PopART only the "
        "enumerations that are values of Options._Popart.set. Programs for PopART itself need Graphcore's SDK."
    )
