"""Leaving `torch.inference_mode` for a while."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch

__all__ = ["left"]


@contextlib.contextmanager
def left() -> Iterator[None]:
    """Leave inference mode in the `with` block, with gradients enabled or not as they were.

    Tensors that are made in it do not count their changes, which a trace goes by, and cannot be changed after it, as a
    program changes its weights.
    """
    enabled = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(enabled):
        yield
