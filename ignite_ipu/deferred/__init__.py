"""Training steps captured from a loop's own code, each run as one device step.

Rooms, each of which imports those before it: `graph` has the operations and graphs, `tensor` records operations and
finds the sources of read values, `compiled` has the modules and programs for the device, `model` the loops with their
books and updates. The doors are `prepare`, `engine_step` and `accelerator`. The room imports `session`, and neither
engines nor scripts. Start reading with `model/loop.py`.
"""

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
