"""Gradients of what has gone backward for an update that is not complete, which the host computes."""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import Operation, replayed
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.structure import unflatten
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.tensors.raw import named_tensors, plain, requires_grad

__all__ = ["gradients_on_host"]


def gradients_on_host(model: nn.Module, losses: Sequence[Loss]) -> Dict[int, Optional[torch.Tensor]]:
    """Return the gradients of the sum of losses by `id` of the parameter, None where none depends on it.

    Layers are in the modes they are in: random ones draw others than the step will, and statistics of batches are not
    kept.

    Args:
        model: What the parameters are of, with the newest weights on the host.
        losses: What went backward.
    """
    with torch._C.DisableTorchFunctionSubclass():
        trained = {id(each): plain(each).requires_grad_() for each in model.parameters() if requires_grad(each)}
    sums: Dict[int, Optional[torch.Tensor]] = dict.fromkeys(trained)
    with torch.random.fork_rng(devices=[]), torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
        for loss in losses:
            found = torch.autograd.grad(_recomputed(loss, trained).sum(), list(trained.values()), allow_unused=True)
            for key, gradient in zip(trained, found):
                before = sums[key]
                if gradient is not None:
                    sums[key] = gradient if before is None else before + gradient
    return sums


def _recomputed(loss: Loss, trained: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Return a loss as a tensor that depends on copies of parameters."""

    def tensor_of(leaf: Input, operation: Operation) -> torch.Tensor:
        return trained.get(id(leaf.tensor), torch.Tensor.detach(leaf.tensor))

    results = replayed(loss.operations, tensor_of, functools.partial(_called, trained))
    return results[loss.value.operation][loss.value.index]


def _called(trained: Mapping[int, torch.Tensor], call: Operation, leaves: List[Any]) -> Any:
    """Return what a model computes with copies of its parameters, and of its buffers, in which it may write."""
    assert call.model is not None
    model, (args, kwargs) = call.model.model, unflatten(call.signature.structure, leaves)
    # Each tensor of each module by one name: PyTorch puts back a copy where a module has several.
    tensors = {
        name: trained[id(each)] if id(each) in trained else torch.Tensor.detach(each).clone()
        for name, each in named_tensors(model).items()
    }
    with EAGER:
        return torch.func.functional_call(model, tensors, args, kwargs, tie_weights=False)
