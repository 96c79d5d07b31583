"""Autograd's graph behind tensors, and its leaves: the tensors that gradients of others are accumulated in."""

from __future__ import annotations

from typing import Any, Iterable, List

import torch

from ignite_ipu.program.reached import reached
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def differentiated(tensors: Iterable[torch.Tensor]) -> List[torch.Tensor]:
    """Return the tensors that a backward pass from some tensors would compute gradients of."""
    tensors = list(tensors)
    with DisableTorchFunctionSubclass():
        leaves = [each for each in tensors if each.grad_fn is None and each.requires_grad]
    found = [getattr(node, "variable", None) for node in nodes_behind(tensors)]
    return leaves + [leaf for leaf in found if leaf is not None]


def nodes_behind(tensors: Iterable[torch.Tensor]) -> List[Any]:
    """Return the nodes of autograd's graph that a backward pass from some tensors would reach."""
    with DisableTorchFunctionSubclass():
        start: List[Any] = [each.grad_fn for each in tensors if each.grad_fn is not None]
    return list(reached(start, lambda node: [before for before, _ in node.next_functions if before is not None]))
