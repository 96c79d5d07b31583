"""Names that published programs use of PopTorch's private module of that name."""

from __future__ import annotations

from ignite_ipu.emulator.compiler.tracing import isRunningOnIpu as isDispatchTracing
from ignite_ipu.emulator.errors import createPoptorchError
from ignite_ipu.emulator.ops.registered import internal_cast_to as internal_cast
from ignite_ipu.emulator.values.wrapping import rewrapModelIfNecessary, unwrapModelIfNecessary

__all__ = [
    "createPoptorchError",
    "internal_cast",
    "isDispatchTracing",
    "rewrapModelIfNecessary",
    "unwrapModelIfNecessary",
]
