"""Wrappers that scripts for GPUs put around models, whose work an IPU's compiler and replicas do."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from ignite_ipu.errors import ProcessesError

__all__ = ["unwrapped"]

_logger = logging.getLogger("ignite_ipu")


def unwrapped(model: Any) -> Any:
    """Return the model inside `DistributedDataParallel` and `torch.compile`; any other as it is.

    Raises:
        ProcessesError: It is wrapped in `DataParallel`, which means replicas.
    """
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        # By name, because its class takes long to import.
        elif type(model).__module__.startswith("torch._dynamo."):
            model = model._orig_mod
            _logger.warning("torch.compile of the %s is left out: PopTorch compiles it.", type(model).__name__)
        elif isinstance(model, nn.DataParallel):
            raise ProcessesError(
                "The model is wrapped in DataParallel, which spreads a batch over GPUs. Pass the model inside "
                "(model.module), and replication_factor=... for as many replicas on IPUs."
            )
        else:
            return model
