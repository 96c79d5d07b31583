"""Buffers of integers and booleans: PopTorch compiles them into a program, so that writes on the host never reach it.

An index that is permuted, a mask, a table of labels: other values are another program.
"""

from __future__ import annotations

from typing import Collection, List, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.swa_utils import AveragedModel

from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import is_users_file
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["CompiledBuffers"]


class CompiledBuffers:
    """Constants that one compiled program has of its module's buffers.

    Args:
        words: All names in the user's code that it runs.
        weights: Who knows when somebody wrote on the host.
    """

    def __init__(self, step: nn.Module, words: Collection[str], weights: Weights) -> None:
        self._weights = weights
        self._seen = weights.edits
        self._compiled: List[Tuple[str, torch.Tensor, torch.Tensor]] = []
        for path, module in step.named_modules():
            for kind in ("_buffers", "_parameters"):
                for name, tensor in module.__dict__[kind].items():
                    if tensor is not None and not _is_on_device(tensor) and _is_used(module, name, words):
                        full = f"{path}.{name}" if path else name
                        self._compiled.append((full, tensor, plain(tensor).clone()))

    def changed(self) -> List[str]:
        """Return the names of those that have other values now; looks at them only after a write on the host."""
        edits = self._weights.edits
        if edits == self._seen or not self._compiled:
            return []
        names = [name for name, tensor, value in self._compiled if not _same(plain(tensor), value)]
        if not names:
            self._seen = edits
        return names


def _is_on_device(tensor: torch.Tensor) -> bool:
    return plain(tensor).is_floating_point()


def _is_used(module: nn.Module, name: str, words: Collection[str]) -> bool:
    """Tell whether a program may depend on a buffer; PyTorch's counters of batches and of averages it does not."""
    if isinstance(module, _NormBase) and name == "num_batches_tracked":
        return module.momentum is None
    if isinstance(module, AveragedModel) and name == "n_averaged":
        return False
    code = getattr(type(module).forward, "__code__", None)
    return code is None or not is_users_file(code.co_filename) or name in words


def _same(now: torch.Tensor, then: torch.Tensor) -> bool:
    return now.shape == then.shape and torch.equal(now, then)
