"""Model libraries are told that a model is being traced, in the ways in which they ask."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, List
from unittest import mock

import torch
from torch import nn

__all__ = ["declared_as_tracing", "without_generation_cache"]


@contextmanager
def declared_as_tracing() -> Iterator[None]:
    """Make `torch.jit.is_tracing()` true in the `with` block.

    Model libraries such as transformers ask it before they look at the values of a mask to take a shortcut. A model
    that is compiled for an IPU has no values to look at, and PopTorch does not answer for them.
    """
    with mock.patch.object(torch.jit, "is_tracing", return_value=True):
        yield


@contextmanager
def without_generation_cache(model: nn.Module) -> Iterator[None]:
    """Let the `config.use_cache` of transformers models be false in the `with` block.

    Their cache of past keys and values begins with zero-sized tensors, which PopTorch refuses, and only generation
    reads it. `past_key_values` is then missing in the output.
    """
    configs: List[Any] = [getattr(module, "config", None) for module in model.modules()]
    cached = [config for config in configs if getattr(config, "use_cache", None) is True]
    for config in cached:
        config.use_cache = False
    try:
        yield
    finally:
        for config in cached:
            config.use_cache = True
