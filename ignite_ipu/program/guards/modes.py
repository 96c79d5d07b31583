"""Modes of a model's modules, in training or in evaluation."""

from __future__ import annotations

import contextlib
from typing import Iterator, List

from torch import nn

__all__ = ["modes_kept", "modes_of"]


def modes_of(model: nn.Module) -> List[bool]:
    """Return whether each module of a model is in training mode."""
    return [module.training for module in model.modules()]


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Put the modules back into the modes they are in, after the `with` block has changed them."""
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode
