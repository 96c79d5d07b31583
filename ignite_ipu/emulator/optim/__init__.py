"""PopTorch's optimizers: descriptions that an executor reads and runs on the device."""

from __future__ import annotations

from ignite_ipu.emulator.optim.adam import Adam, AdamW
from ignite_ipu.emulator.optim.attributes import VariableAttributes
from ignite_ipu.emulator.optim.lamb import LAMB
from ignite_ipu.emulator.optim.optimizer import Optimizer
from ignite_ipu.emulator.optim.rmsprop import RMSprop
from ignite_ipu.emulator.optim.sgd import SGD

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
