"""Libraries are told that a model is being traced, in the way in which they ask."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator
from unittest import mock

import torch

__all__ = ["declared_as_tracing"]


@contextmanager
def declared_as_tracing() -> Iterator[None]:
    """Make `torch.jit.is_tracing()` true in the `with` block.

    Model libraries such as transformers ask it before they look at the values of a mask to take a shortcut. A model
    that is compiled for an IPU has no values to look at, and PopTorch does not answer for them.
    """
    with mock.patch.object(torch.jit, "is_tracing", return_value=True):
        yield
