"""Weights whose memory other tensors have: PyTorch updates all of them together, and a device has a copy of each."""

from __future__ import annotations

from typing import Container, Iterable, Iterator, Tuple

import torch
from torch import nn

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.errors import OptimizerError
from ignite_ipu.program.tensors.raw import named_tensors, requires_grad
from ignite_ipu.program.tensors.sharing import overlapping
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

WAY_OUT = "Let them be one parameter (b.weight = a.weight), or copy the values (clone())."


def refuse_shared_memory(model: nn.Module) -> None:
    """Refuse updates on the device of a weight in whose memory the model has another tensor.

    Raises:
        OptimizerError: There is such a weight.
    """
    with DisableTorchFunctionSubclass():
        trained = {id(each) for each in all_parameters(model) if requires_grad(each)}
    for name, other in weights_in_shared_memory(named_tensors(model).items(), trained):
        raise OptimizerError(
            f"{name} has memory in common with {other}, so that each update changes both in PyTorch. A device keeps a "
            f"copy of each. {WAY_OUT} {ON_THE_HOST}"
        )


def weights_in_shared_memory(
    named: Iterable[Tuple[str, torch.Tensor]], trained: Container[int]
) -> Iterator[Tuple[str, str]]:
    """Yield the names of trained weights, each with that of another tensor in its memory.

    Args:
        named: Tensors with their names; a tensor under several names is one tensor.
        trained: Ids of the weights that updates write.
    """
    found = {id(tensor): (name, tensor) for name, tensor in named}
    updated = {name for name, tensor in found.values() if id(tensor) in trained}
    for name, other in overlapping(found.values()) if updated else ():
        if name in updated or other in updated:
            yield (name, other) if name in updated else (other, name)
