"""Events of captured loops, for tools that follow a program from outside."""

from __future__ import annotations

from typing import Any, Callable, List

import torch
from torch import nn


class LoopObserver:
    """Follows captured loops. Its methods do nothing; subclasses override them."""

    def went_backward(self, loss: torch.Tensor) -> None:
        """Note a deferred loss that goes backward."""

    def evaluated(self, module: nn.Module, output: Any) -> None:
        """Note the output of a call of a captured model without training."""


OBSERVERS: List[LoopObserver] = []
"""The observers of this process."""


def observe(observer: LoopObserver) -> Callable[[], None]:
    """Have an observer follow all captured loops of this process; returns the function that ends it."""
    OBSERVERS.append(observer)
    return lambda: OBSERVERS.remove(observer)
