"""`torch.optim` and `poptorch.optim`: conversion, the link of a user's optimizer to the device's, and its state."""

from __future__ import annotations

from ignite_ipu.errors import ConstantAttributeError, OptimizerError
from ignite_ipu.optimizers.changes import Change, Settings
from ignite_ipu.optimizers.checks import check_parameters
from ignite_ipu.optimizers.conversion import Conversion, Receipt, Row, convert_optimizer
from ignite_ipu.optimizers.kinds import OptimizerKind
from ignite_ipu.optimizers.link import OptimizerLink, SavedState
from ignite_ipu.optimizers.state import convert_optimizer_state, state_from_torch, state_to_torch

__all__ = [
    "Change",
    "ConstantAttributeError",
    "Conversion",
    "OptimizerError",
    "OptimizerKind",
    "OptimizerLink",
    "Receipt",
    "Row",
    "SavedState",
    "Settings",
    "check_parameters",
    "convert_optimizer",
    "convert_optimizer_state",
    "state_from_torch",
    "state_to_torch",
]
