"""Weights whose memory other tensors have: PyTorch updates all of them together, and a device has a copy of each."""

from __future__ import annotations

from typing import Container, Iterable, Iterator, List, Tuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.errors import OptimizerError
from ignite_ipu.program.tensors.raw import named_tensors, plain, requires_grad
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

WAY_OUT = "Let them be one parameter (b.weight = a.weight), or copy the values (clone())."


def refuse_shared_memory(model: nn.Module) -> None:
    """Refuse updates on the device of a weight in whose memory the model has another tensor.

    Raises:
        OptimizerError: There is such a weight.
    """
    with DisableTorchFunctionSubclass():
        trained = {id(each) for each in model.parameters() if requires_grad(each)}
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
    known = {id(tensor): (name, tensor) for name, tensor in named}
    places: List[Tuple[int, int, bool, str]] = []
    for name, tensor in known.values():
        memory = plain(tensor)
        if is_lazy(tensor) or memory.layout is not torch.strided or not memory.numel() or not memory.data_ptr():
            continue
        steps = sum((size - 1) * stride for size, stride in zip(memory.shape, memory.stride()))
        start = memory.data_ptr()
        places.append((start, start + (steps + 1) * memory.element_size(), id(tensor) in trained, name))
    places.sort()
    # For trained tensors and for others, the one so far whose memory ends last.
    ends = {True: (0, ""), False: (0, "")}
    for start, end, is_trained, name in places:
        for other_is_trained, (other_end, other) in ends.items():
            if start < other_end and (is_trained or other_is_trained):
                yield (name, other) if is_trained else (other, name)
        ends[is_trained] = max(ends[is_trained], (end, name))
