"""PopTorch 3.3's public API on the host's CPU, with an IPU's semantics.

`import ignite_ipu.emulator as poptorch` gives what `import poptorch` gives on a machine with Graphcore's SDK; `install`
makes `import poptorch` itself work. `NOT_IN_POPTORCH` lists the names of `__all__` that are the emulator's own.
"""

from __future__ import annotations

from ignite_ipu.emulator import enums, ops, optim, options, profiling, testing
from ignite_ipu.emulator.compiler.tracing import isRunningOnIpu, registerPostCompileHook, registerPreCompileHook
from ignite_ipu.emulator.data import AsynchronousDataAccessor, DataLoader
from ignite_ipu.emulator.device.device import Counters, counters
from ignite_ipu.emulator.device.faults import Fault, inject_faults
from ignite_ipu.emulator.device.machine import ipuHardwareIsAvailable, ipuHardwareVersion, poptorchAtExit
from ignite_ipu.emulator.enums import (
    AutoStage,
    CommGroupType,
    ConnectionType,
    DataLoaderMode,
    HalfFloatCastingBehavior,
    Liveness,
    MatMulSerializationMode,
    MeanReductionStrategy,
    MultiConvPlanType,
    OutputMode,
    OverlapMode,
    ReductionType,
    SharingStrategy,
    SyncPattern,
    VariableRetrievalMode,
)
from ignite_ipu.emulator.errors import Error, RecoverableError, UnrecoverableError, createPoptorchError
from ignite_ipu.emulator.executor.executor import PoplarExecutor
from ignite_ipu.emulator.executor.load import load
from ignite_ipu.emulator.executor.saving import importPoptorchMetadataFromFile
from ignite_ipu.emulator.executor.wrappers import inferenceModel, trainingModel
from ignite_ipu.emulator.files.trust import trust_pickled_models
from ignite_ipu.emulator.installation import Installation, install, run_script
from ignite_ipu.emulator.logs import logger, setLogLevel
from ignite_ipu.emulator.ops import (
    CPU,
    MultiConv,
    attributes_lists,
    cond,
    ctc_beam_search_decoder,
    custom_op,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    identity_loss,
    ipu_print_tensor,
    nearest,
    nop,
    recomputationCheckpoint,
    register_custom_op,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
    unregister_custom_op,
)
from ignite_ipu.emulator.ops.introspection import accessAttributes, getIpuTensorId
from ignite_ipu.emulator.options import (
    BlockId,
    ConfigFileError,
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
    TensorLocationSettings,
)
from ignite_ipu.emulator.trace import autocasting
from ignite_ipu.emulator.trace.annotations import (
    Attribute,
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    NameScope,
    module_repr,
    print,
    removeBlocks,
)
from ignite_ipu.emulator.trace.autocasting import autocast
from ignite_ipu.emulator.trace.operators import support as operators
from ignite_ipu.emulator.values.custom_types import ICustomArgParser, registerCustomArgParser
from ignite_ipu.emulator.version import __version__

NOT_IN_POPTORCH = frozenset(
    {
        "Counters",
        "Fault",
        "Installation",
        "counters",
        "inject_faults",
        "install",
        "operators",
        "register_custom_op",
        "run_script",
        "testing",
        "trust_pickled_models",
        "unregister_custom_op",
    }
)
"""`testing` is PopTorch's, but must be imported by itself there."""

__all__ = [
    "CPU",
    "AsynchronousDataAccessor",
    "Attribute",
    "AutoStage",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "BlockId",
    "CommGroupType",
    "ConfigFileError",
    "ConnectionType",
    "Counters",
    "DataLoader",
    "DataLoaderMode",
    "Error",
    "Fault",
    "HalfFloatCastingBehavior",
    "ICustomArgParser",
    "Installation",
    "LegacyBeginBlockFn",
    "Liveness",
    "MatMulSerializationMode",
    "MeanReductionStrategy",
    "MultiConv",
    "MultiConvPlanType",
    "NameScope",
    "Options",
    "OutputMode",
    "OverlapMode",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "PoplarExecutor",
    "RecoverableError",
    "ReductionType",
    "SerialPhasedExecution",
    "ShardedExecution",
    "SharingStrategy",
    "Stage",
    "SyncPattern",
    "TensorLocationSettings",
    "UnrecoverableError",
    "VariableRetrievalMode",
    "__version__",
    "accessAttributes",
    "attributes_lists",
    "autocast",
    "autocasting",
    "cond",
    "counters",
    "createPoptorchError",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "enums",
    "for_loop",
    "fps",
    "getIpuTensorId",
    "identity_loss",
    "importPoptorchMetadataFromFile",
    "inferenceModel",
    "inject_faults",
    "install",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "load",
    "logger",
    "module_repr",
    "nearest",
    "nop",
    "operators",
    "ops",
    "optim",
    "options",
    "poptorchAtExit",
    "print",
    "profiling",
    "recomputationCheckpoint",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "register_custom_op",
    "removeBlocks",
    "run_script",
    "serializedMatMul",
    "setLogLevel",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
    "testing",
    "trainingModel",
    "trust_pickled_models",
    "unregister_custom_op",
]
