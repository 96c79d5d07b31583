"""Refusal of models whose weights have memory in common: a device keeps a copy of each."""

from __future__ import annotations

from torch import nn

from ignite_ipu.deferred.graph.owners import OPTIMIZERS, held_tensors, owned_tensors
from ignite_ipu.errors import SessionError
from ignite_ipu.optimizers.shared_memory import WAY_OUT, weights_in_shared_memory
from ignite_ipu.program.tensors.raw import named_tensors, requires_grad
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def refuse_shared_between(model: nn.Module) -> None:
    """Refuse a model that has a tensor in the memory of a weight that updates change in another model."""
    own = named_tensors(model)
    ids = set(map(id, own.values()))
    others = [(f"{name} of {other.name}", each) for other, name, each in owned_tensors() if id(each) not in ids]
    with DisableTorchFunctionSubclass():
        held = [tensor for optimizer in list(OPTIMIZERS) for tensor in held_tensors(optimizer)]
        trained = {id(tensor) for tensor in held if requires_grad(tensor)}
    for names in weights_in_shared_memory([*others, *own.items()], trained):
        if len({name in own for name in names}) == 2:
            raise SessionError(
                f"{names[0]} has memory in common with {names[1]}: in PyTorch each update of the one changes the "
                f"other model, too. A device keeps a copy of each. {WAY_OUT}"
            )
