"""A training step captured from a loop's own code, then run as one device step."""

from __future__ import annotations

from ignite_ipu.deferred.engine_step import ipu_step
from ignite_ipu.deferred.model.capturing import capture_model, captured
from ignite_ipu.deferred.model.model import CapturedModel
from ignite_ipu.deferred.model.optimizer import capture_optimizer
from ignite_ipu.deferred.tensor.tensor import DeferredTensor
from ignite_ipu.errors import CaptureError, EarlyReadError, IPUOutOfMemoryError

__all__ = [
    "CaptureError",
    "CapturedModel",
    "DeferredTensor",
    "EarlyReadError",
    "IPUOutOfMemoryError",
    "capture_model",
    "capture_optimizer",
    "captured",
    "ipu_step",
]
