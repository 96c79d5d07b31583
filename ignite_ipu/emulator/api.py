"""The names of PopTorch's package and the emulator's own, which `ignite_ipu.emulator` shows when one is asked for."""

from __future__ import annotations

from ignite_ipu.emulator import enums, ops, optim, options, profiling, testing
from ignite_ipu.emulator.compiler.inductor import compile_steps
from ignite_ipu.emulator.compiler.tracing import isRunningOnIpu, registerPostCompileHook, registerPreCompileHook
from ignite_ipu.emulator.data import AsynchronousDataAccessor, DataLoader
from ignite_ipu.emulator.device.device import Counters, counters
from ignite_ipu.emulator.device.faults import Fault, inject_faults
from ignite_ipu.emulator.device.machine import ipuHardwareIsAvailable, ipuHardwareVersion, poptorchAtExit
from ignite_ipu.emulator.enums import *  # noqa: F403
from ignite_ipu.emulator.errors import Error, RecoverableError, UnrecoverableError, createPoptorchError
from ignite_ipu.emulator.executor.executor import PoplarExecutor
from ignite_ipu.emulator.executor.saving import importPoptorchMetadataFromFile
from ignite_ipu.emulator.executor.wrappers import inferenceModel, load, trainingModel
from ignite_ipu.emulator.files.trust import trust_pickled_models
from ignite_ipu.emulator.installation import Installation, install, run_script
from ignite_ipu.emulator.logs import logger, setLogLevel
from ignite_ipu.emulator.ops import *  # noqa: F403
from ignite_ipu.emulator.ops.custom import accessAttributes
from ignite_ipu.emulator.ops.registered import OPERATORS as OPERATORS
from ignite_ipu.emulator.options import *  # noqa: F403
from ignite_ipu.emulator.trace import autocasting, operators
from ignite_ipu.emulator.trace.active import getIpuTensorId
from ignite_ipu.emulator.trace.annotations import module_repr, print
from ignite_ipu.emulator.trace.autocasting import autocast
from ignite_ipu.emulator.values.structures import ICustomArgParser, registerCustomArgParser
from ignite_ipu.emulator.version import __version__

NOT_IN_POPTORCH = frozenset(
    [
        "Counters",
        "Fault",
        "Installation",
        "compile_steps",
        "counters",
        "inject_faults",
        "install",
        "operators",
        "register_custom_op",
        "run_script",
        "testing",
        "trust_pickled_models",
        "unregister_custom_op",
    ]
)
"""`testing` is PopTorch's, but must be imported by itself there."""

__all__ = [
    "AsynchronousDataAccessor",
    "Counters",
    "DataLoader",
    "Error",
    "Fault",
    "ICustomArgParser",
    "Installation",
    "PoplarExecutor",
    "RecoverableError",
    "UnrecoverableError",
    "__version__",
    "accessAttributes",
    "autocast",
    "autocasting",
    "compile_steps",
    "counters",
    "createPoptorchError",
    "enums",
    "getIpuTensorId",
    "importPoptorchMetadataFromFile",
    "inferenceModel",
    "inject_faults",
    "install",
    "ipuHardwareIsAvailable",
    "ipuHardwareVersion",
    "isRunningOnIpu",
    "load",
    "logger",
    "module_repr",
    "operators",
    "ops",
    "optim",
    "options",
    "poptorchAtExit",
    "print",
    "profiling",
    "registerCustomArgParser",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "run_script",
    "setLogLevel",
    "testing",
    "trainingModel",
    "trust_pickled_models",
]
__all__ += enums.__all__
__all__ += ops.__all__
__all__ += options.__all__
