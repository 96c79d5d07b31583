"""Calls of an engine's step function: which one is running, and what handlers find in its output.

A step function that accumulates returns before the update of its loss has run, and its handlers run in between.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Optional

import torch

__all__ = ["CALLS", "with_known_values"]

# What is looked into. Handlers may read deferred tensors in anything else.
_NESTED = (torch.Tensor, tuple, list, dict)


class _Calls(threading.local):
    """The calls of step functions in this thread.

    Attributes:
        current: Stands for the innermost one that has not returned, None outside of all.
    """

    current: Optional[object] = None


CALLS = _Calls()


def with_known_values(step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a step function returns, with plain tensors where the values are known.

    The others come with an update that has yet to run. They stay deferred, so that nothing is run for what no handler
    reads.
    """
    from ignite_ipu.deferred.tensor.tensor import known_in

    before, CALLS.current = CALLS.current, object()
    try:
        output = step(*args, **kwargs)
    finally:
        CALLS.current = before
    return known_in(output) if isinstance(output, _NESTED) else output
