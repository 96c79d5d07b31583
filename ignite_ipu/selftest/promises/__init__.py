"""The promises, in groups; one module each."""

from __future__ import annotations

from typing import List

from ignite_ipu.selftest.promise import Promise
from ignite_ipu.selftest.promises import (
    batching,
    captured,
    checkpoints,
    device,
    faults,
    loaders,
    operators,
    optimizers,
    outputs,
    pipelines,
    precision,
    schedules,
    weights,
)

__all__ = ["every_promise"]

_GROUPS = (
    device.PROMISES,
    operators.PROMISES,
    batching.PROMISES,
    outputs.PROMISES,
    optimizers.PROMISES,
    schedules.PROMISES,
    weights.PROMISES,
    checkpoints.PROMISES,
    loaders.PROMISES,
    precision.PROMISES,
    captured.PROMISES,
    pipelines.PROMISES,
    faults.PROMISES,
)


def every_promise() -> List[Promise]:
    """Return all promises, in the order in which they are checked."""
    return [promise for group in _GROUPS for promise in group]
