"""Capabilities: the one table of the treatment of names of PyTorch, Ignite and accelerate on IPUs.

`check` reports by it, `run` and `auto` substitute by it, optimizers are converted by it, and pages of the documentation
are generated from it. A new name is one entry of `gpu`, `gradients`, `precision`, `wrappers` or `optimizers`. The room
imports no torch. Start reading with `table`.

Operators and their arguments, those of losses too, are in the table of `ignite_ipu.operators`: PopTorch's compiler
decides about them. No name is in both.
"""

from __future__ import annotations

from ignite_ipu.capabilities.gpu import gpu_capability, gpu_functions
from ignite_ipu.capabilities.gradients import GRADIENTS
from ignite_ipu.capabilities.optimizers import ARGUMENTS, OPTIMIZERS, argument_capability, optimizer_capability
from ignite_ipu.capabilities.precision import LACKED_FORMATS, PRECISION
from ignite_ipu.capabilities.table import Capability, Table, Treatment
from ignite_ipu.capabilities.wrappers import WRAPPERS

__all__ = [
    "ARGUMENTS",
    "GRADIENTS",
    "LACKED_FORMATS",
    "OPTIMIZERS",
    "PRECISION",
    "WRAPPERS",
    "Capability",
    "Table",
    "Treatment",
    "argument_capability",
    "gpu_capability",
    "gpu_functions",
    "optimizer_capability",
]
