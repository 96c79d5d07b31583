"""What a device's optimizer was told, and what it had, at one moment."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Tuple

__all__ = ["SavedState", "Settings"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The hyper-parameters that a device was told at one moment.

    Attributes:
        groups: Every parameter group's values, in the order of their names.
        loss_scaling: Factor on the loss gradient.
    """

    groups: Tuple[Tuple[Any, ...], ...]
    loss_scaling: Any


@dataclasses.dataclass(frozen=True)
class SavedState:
    """What a device's optimizer had at one moment.

    Attributes:
        device: What PopTorch's `set_state_dict` takes; `ipu_state` in it is None before the first use.
        scaling: The loss scaling that velocities in it are multiplied by.
        settings: The hyper-parameters then.
        groups: The user's parameter groups, with numbers for parameters.
        steps: Weight updates made.
    """

    device: Dict[str, Any]
    scaling: float
    settings: Settings
    groups: List[Dict[str, Any]]
    steps: int
