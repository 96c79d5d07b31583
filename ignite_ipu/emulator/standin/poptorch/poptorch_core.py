"""What programs use of the compiled part of PopTorch."""

from __future__ import annotations

from ignite_ipu.emulator.errors import Error, RecoverableError, UnrecoverableError
from ignite_ipu.emulator.hardware import ipuHardwareVersion, poptorchAtExit
from ignite_ipu.emulator.introspection import getIpuTensorId
from ignite_ipu.emulator.logs import setLogLevel
from ignite_ipu.emulator.saving import importPoptorchMetadataFromFile

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
