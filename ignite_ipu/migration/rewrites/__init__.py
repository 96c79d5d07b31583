"""The rewrites, one per module, in the order in which `migrate` applies them."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Mapping

from ignite_ipu.migration.docstrings import texts_of
from ignite_ipu.migration.rewriting.editor import Rewrite

# Devices first, because later rewrites check whether a device is the one that ignite_ipu chooses.
ORDER = (
    "device_strings",
    "device_moves",
    "checkpoint_loading",
    "parallel_launch",
    "optimizers",
    "ignite_factories",
    "ignite_evaluators",
    "accelerators",
    "mixed_precision",
    "gradient_clipping",
    "captured_loops",
    "engine_steps",
    "mode_before_wrapping",
)


@lru_cache(maxsize=None)
def all_rewrites() -> Mapping[str, Rewrite]:
    """Return every rewrite by name, in the order of their application."""
    return {rewrite.name: rewrite for rewrite in map(_rewrite, ORDER)}


def _rewrite(name: str) -> Rewrite:
    module = importlib.import_module(f"{__name__}.{name}")
    texts = texts_of(module)
    return Rewrite(name.replace("_", "-"), texts.summary, texts.example, module.apply)
