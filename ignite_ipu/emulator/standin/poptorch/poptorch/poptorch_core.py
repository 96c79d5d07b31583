"""Names that programs use of the compiled part of PopTorch."""

from __future__ import annotations

from ignite_ipu.emulator.device.machine import ipuHardwareVersion, poptorchAtExit
from ignite_ipu.emulator.errors import Error, RecoverableError, UnrecoverableError
from ignite_ipu.emulator.executor.saving import importPoptorchMetadataFromFile
from ignite_ipu.emulator.logs import setLogLevel
from ignite_ipu.emulator.trace.active import getIpuTensorId

__all__ = [
    "Error",
    "RecoverableError",
    "UnrecoverableError",
    "getIpuTensorId",
    "importPoptorchMetadataFromFile",
    "ipuHardwareVersion",
    "poptorchAtExit",
    "setLogLevel",
]
