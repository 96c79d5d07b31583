"""PopTorch 3.3's public API on the host's CPU, with an IPU's semantics.

`import ignite_ipu.emulator as poptorch` gives what `import poptorch` gives on a machine with Graphcore's SDK.
"""

from __future__ import annotations

from ignite_ipu.emulator import autocasting, enums, operators, ops, optim, options, profiling
from ignite_ipu.emulator.annotations import (
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
from ignite_ipu.emulator.autocasting import autocast
from ignite_ipu.emulator.custom_types import ICustomArgParser, registerCustomArgParser
from ignite_ipu.emulator.data import AsynchronousDataAccessor, DataLoader
from ignite_ipu.emulator.device import Counters, counters
from ignite_ipu.emulator.enums import *
from ignite_ipu.emulator.errors import Error, RecoverableError, UnrecoverableError
from ignite_ipu.emulator.executor import PoplarExecutor
from ignite_ipu.emulator.faults import Fault, inject_faults
from ignite_ipu.emulator.hardware import ipuHardwareIsAvailable, ipuHardwareVersion, poptorchAtExit
from ignite_ipu.emulator.logs import setLogLevel
from ignite_ipu.emulator.ops import *
from ignite_ipu.emulator.options import *
from ignite_ipu.emulator.tracing import isRunningOnIpu, registerPostCompileHook, registerPreCompileHook
from ignite_ipu.emulator.version import __version__
from ignite_ipu.emulator.wrappers import inferenceModel, trainingModel
