"""Hooks on the gradients of parameters, which autograd runs when it accumulates a gradient on the host."""

from __future__ import annotations

from typing import List, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, gradient_hooks_of


class GradientHooks:
    """Finds parameters with hooks; looks again only for another list, or when PyTorch has registered a hook since."""

    def __init__(self) -> None:
        self._found: List[int] = []
        self._parameters: Sequence[torch.Tensor] = ()
        self._handles = -1  # of hooks, that there were when parameters were looked at

    def among(self, parameters: Sequence[torch.Tensor]) -> Sequence[int]:
        """Return the numbers of the parameters with hooks; some of the hooks may have been removed since."""
        if self._parameters is not parameters or self._handles != RemovableHandle.next_id:
            # PyTorch numbers its handles, and there is one for each hook.
            self._parameters, self._handles = parameters, RemovableHandle.next_id
            with DisableTorchFunctionSubclass():
                self._found = [number for number, each in enumerate(parameters) if gradient_hooks_of(each)]
        return self._found
