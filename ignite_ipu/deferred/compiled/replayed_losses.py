"""Losses that the host computes anew for their gradients, from recorded operations and current or previous weights."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Container, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import Operation, by_number, replayed
from ignite_ipu.deferred.graph.state import Older, trained_in
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.structure import unflatten
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.left_behind import called_beside
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.tensors.differentiated import differentiated
from ignite_ipu.program.tensors.raw import named_tensors, plain
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


def computed_gradients(model: nn.Module, losses: Sequence[Loss]) -> Dict[int, Optional[torch.Tensor]]:
    """Return the gradients of the sum of losses by `id` of the parameter, None where none depends on it.

    Parameters may have been frozen since: those have gradients that were trained when a loss was computed. The host has
    the newest weights. Layers are in the modes they are in: random ones draw others than the step will, and statistics
    of batches are not kept.
    """
    ids = frozenset().union(*map(trained_in, losses))
    with DisableTorchFunctionSubclass():
        trained = {id(each): plain(each).requires_grad_() for each in all_parameters(model) if id(each) in ids}
        total = _total(losses, trained)
        found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)
    return dict(zip(trained, found))


def reached_by(losses: Sequence[Loss], parameters: Iterable[torch.Tensor]) -> FrozenSet[int]:
    """Return the ids of those parameters that losses depend on, by autograd's graph of them on the host."""
    with DisableTorchFunctionSubclass():
        trained = {id(each): plain(each).requires_grad_() for each in parameters}
        total = _total(losses, trained)
    leaves = set(map(id, differentiated([total])))
    return frozenset(key for key, tensor in trained.items() if id(tensor) in leaves)


def saved_by(losses: Sequence[Loss], weights: Iterable[torch.Tensor], trains: Container[int]) -> Dict[int, bool]:
    """Return the ids of those weights and buffers whose values autograd needs for the gradients of losses.

    With each is whether autograd may have saved the tensor itself, and not a transposed view or a part of it alone.
    `trains` has the ids of those that have gradients: through which others the gradients flow depends on them.
    """
    with DisableTorchFunctionSubclass():
        # Calls may write into buffers.
        own = {id(each): plain(each) if isinstance(each, nn.Parameter) else plain(each).clone() for each in weights}
        trained = {key: tensor.requires_grad_(key in trains) for key, tensor in own.items()}
        places = {tensor.untyped_storage().data_ptr(): key for key, tensor in trained.items()}
        saved: Dict[int, bool] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            key = places.get(tensor.untyped_storage().data_ptr())
            if key is not None:
                itself = (tensor.shape, tensor.stride()) == (trained[key].shape, trained[key].stride())
                saved[key] = saved.get(key, False) or itself
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            _total(losses, trained)
    return saved


def mixed_gradients(
    loss: Loss, weights: Sequence[torch.Tensor], asked: Container[int], changes: Sequence[Older]
) -> Tuple[Dict[int, torch.Tensor], Dict[Operation, List[torch.Tensor]]]:
    """Return gradients by `id` of their parameter as PyTorch computes them, and the results of a loss's operations.

    Those are returned that are `asked` for and that there are. Weights, buffers too, were changed after operations, in
    the order of `changes`. They are changed in the same ways here, so that autograd finds the memory that it has saved
    with the later values, or raises its error for writes that it counts.
    """
    trains = trained_in(loss)
    known = {id(each): plain(each) for each in weights}
    # By the id of a weight: the values that it got by the changes, and the number of the operation before each.
    events: List[Tuple[Older, int, Callable[[], torch.Tensor]]] = []
    first = dict(known)
    for change in reversed(changes):
        for tensor, before in change.values:
            if id(tensor) in known:
                assert before is not None
                events.insert(0, (change, id(tensor), functools.partial(torch.clone, first[id(tensor)])))
                first[id(tensor)] = before
    with DisableTorchFunctionSubclass():
        copies = {key: value.clone().requires_grad_(key in trains) for key, value in first.items()}

    def change_before(number: float) -> None:
        while events and events[0][0].taken < number:
            change, key, value = events.pop(0)
            copy = copies[key]
            if key in change.replaced:
                copy.data = value()
            elif key in change.uncounted - change.counted:
                copy.data.copy_(value())
            else:
                with torch.no_grad():
                    copy.copy_(value())

    with DisableTorchFunctionSubclass():
        results = _replayed([loss], copies, lambda operation: change_before(operation.number))
        change_before(float("inf"))
        wanted = {key: copy for key, copy in copies.items() if copy.requires_grad and key in asked}
        total = results[loss.value.operation][loss.value.index].sum()
        found: Sequence[Optional[torch.Tensor]] = ()
        if wanted:
            found = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    return {key: gradient for key, gradient in zip(wanted, found) if gradient is not None}, results


def _total(losses: Sequence[Loss], trained: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """Return the sum of losses, computed on the host from copies of parameters, by the ids of these."""
    results = _replayed(losses, trained)
    with DisableTorchFunctionSubclass(), torch.enable_grad():
        return torch.stack([results[loss.value.operation][loss.value.index].sum() for loss in losses]).sum()


def _replayed(
    losses: Sequence[Loss], trained: Mapping[int, torch.Tensor], before: Callable[[Operation], None] = lambda each: None
) -> Dict[Operation, List[torch.Tensor]]:
    """Compute the operations of losses on the host from copies of parameters, and return the results of each.

    Each operation has copies without gradients of the parameters that were frozen when it was recorded. Operations
    without gradients that another update has made have their known values. Buffers are copies, too, which calls write
    one after another. `before` is called before each operation that reads tensors of the host.
    """
    operations = {each for loss in losses for each in loss.operations if not each.has_lost_operands}
    buffers: Dict[int, torch.Tensor] = {}

    def tensor_of(leaf: Input, operation: Operation) -> torch.Tensor:
        before(operation)
        if leaf.is_buffer and id(leaf.tensor) not in trained:
            if id(leaf.tensor) not in buffers:
                buffers[id(leaf.tensor)] = torch.Tensor.detach(leaf.tensor).clone()
            return buffers[id(leaf.tensor)]
        copy = trained.get(id(leaf.tensor), leaf.tensor)
        is_trained = leaf.shape.requires_grad or not copy.requires_grad
        return copy if copy is not leaf.tensor and is_trained else torch.Tensor.detach(copy)

    def called(operation: Operation, leaves: List[Any]) -> Any:
        before(operation)
        return _called(trained, buffers, operation, leaves)

    with torch.random.fork_rng(devices=[]), DisableTorchFunctionSubclass(), torch.enable_grad():
        return replayed(sorted(operations, key=by_number), tensor_of, called, writes=True)


def _called(
    trained: Mapping[int, torch.Tensor], buffers: Dict[int, torch.Tensor], operation: Operation, leaves: List[Any]
) -> Any:
    """Return the result of a model with copies of its parameters, and of its buffers after the previous calls.

    Attributes stay as they are: a recurrent layer keeps a list of its weights, which would be these copies.
    """
    assert operation.model is not None
    model, (args, kwargs) = operation.model.model, unflatten(operation.signature.structure, leaves)
    modes = operation.signature.modes
    with EAGER, modes.put_back() if modes is not None else contextlib.nullcontext():
        # Each tensor of each module by one name: PyTorch would leave a copy there if a module has several.
        tensors = named_tensors(model)
        # A buffer that a previous call has written is copied again, since gradients of that call may need it.
        copies = {id(each): buffers.get(id(each), torch.Tensor.detach(each)).clone() for each in tensors.values()}
        buffers.update(copies)
        given = {name: trained.get(id(each), copies[id(each)]) for name, each in tensors.items()}
        if modes is not None:
            frozen = {id(each) for each, is_trained in zip(modes.of.parameters, modes.trained) if not is_trained}
            pairs = [(name, given[name]) for name, each in tensors.items() if id(each) in frozen]
            given.update({name: copy.detach() for name, copy in pairs if copy.requires_grad})
        call = functools.partial(torch.func.functional_call, model, given, args, kwargs, tie_weights=False)
        attributes = ModuleAttributes(model)
        try:
            result = called_beside(operation.signature.left, call)
        finally:
            attributes.put_back(always=True)
    # PyTorch stores the buffers there that the call has assigned.
    buffers.update({id(each): given[name] for name, each in tensors.items() if id(each) not in trained})
    return result
