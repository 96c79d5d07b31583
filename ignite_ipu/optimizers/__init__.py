"""`torch.optim` and `poptorch.optim`: conversion, the link of a user's optimizer to the device's, and its state."""

from __future__ import annotations

from ignite_ipu.optimizers.changes import Settings
from ignite_ipu.optimizers.conversion import Conversion, convert_optimizer
from ignite_ipu.optimizers.link import OptimizerLink, SavedState, check_parameters
from ignite_ipu.optimizers.state import convert_optimizer_state

__all__ = [
    "Conversion",
    "OptimizerLink",
    "SavedState",
    "Settings",
    "check_parameters",
    "convert_optimizer",
    "convert_optimizer_state",
]
