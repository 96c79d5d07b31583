"""A pickle module for `torch.load` that makes what `scan_pickle` lets pass and nothing else.

It stands in for `weights_only=True` of a PyTorch that refuses some of that: PyTorch 2.0 has no `collections.Counter`,
which `MultiStepLR` keeps its milestones in, and no sets.
"""

from __future__ import annotations

import collections
import functools
import io
import pickle
from typing import Any

import torch

from ignite_ipu.checkpoints.pickle_scan import READABLE

__all__ = ["Unpickler", "is_needed"]


def _set_attributes(unpickler: Any) -> None:
    state, target = unpickler.stack.pop(), unpickler.stack[-1]
    if type(target) is not collections.OrderedDict or type(state) is not dict:
        raise pickle.UnpicklingError(f"it sets attributes of {type(target).__name__}")
    vars(target).update(state)


# The one written in Python: the other sizes its memo by the numbers in the file.
class Unpickler(pickle._Unpickler):
    """Looks up the names that `scan_pickle` knows, and sets attributes of ordered dictionaries alone."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for.

        Raises:
            UnpicklingError: It is none of those that are known.
        """
        if f"{module}.{name}" not in READABLE:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}")
        return super().find_class(module, name)

    dispatch = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: _set_attributes}


@functools.lru_cache(maxsize=None)
def is_needed() -> bool:
    """Tell whether `torch.load(weights_only=True)` refuses something that `scan_pickle` lets pass."""
    file = io.BytesIO()
    torch.save([collections.Counter("a"), {1}, torch.device("cpu"), torch.bfloat16, torch.bool, torch.uint8], file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError:
        return True
    return False
