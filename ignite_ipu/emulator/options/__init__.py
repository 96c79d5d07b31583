"""`poptorch.options`: the options of a model, and their parts."""

from __future__ import annotations

from ignite_ipu.emulator.options.parts import TensorLocationSettings
from ignite_ipu.emulator.options.parts import _DistributedOptions as _DistributedOptions
from ignite_ipu.emulator.options.parts import _JitOptions as _JitOptions
from ignite_ipu.emulator.options.parts import _PrecisionOptions as _PrecisionOptions
from ignite_ipu.emulator.options.parts import _TensorLocationOptions as _TensorLocationOptions
from ignite_ipu.emulator.options.parts import _TrainingOptions as _TrainingOptions
from ignite_ipu.emulator.options.popart import _PopartOptions as _PopartOptions
from ignite_ipu.emulator.options.root import Options
from ignite_ipu.emulator.options.strategies import (
    BlockId,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)
from ignite_ipu.emulator.options.strategies import _IExecutionStrategy as _IExecutionStrategy
from ignite_ipu.emulator.options.strategies import _IPhasedExecution as _IPhasedExecution
from ignite_ipu.emulator.options.text import ConfigFileError
from ignite_ipu.emulator.trace.annotations import Attribute

__all__ = [
    "Attribute",
    "BlockId",
    "ConfigFileError",
    "Options",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
    "TensorLocationSettings",
]
