"""PopTorch's optimizers: descriptions that an executor reads and runs on the device."""

from __future__ import annotations

from ignite_ipu.emulator.optim.algorithms import LAMB, SGD, Adam, AdamW, RMSprop
from ignite_ipu.emulator.optim.optimizer import Optimizer, VariableAttributes

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
