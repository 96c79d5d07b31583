"""PopTorch's optimizers: descriptions that an executor reads and runs on the device."""

from __future__ import annotations

from ignite_ipu.emulator.optim.optimizer import LAMB, SGD, Adam, AdamW, Optimizer, RMSprop, VariableAttributes

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
