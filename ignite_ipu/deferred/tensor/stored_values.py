"""Values of the step that code stores in modules, where PyTorch reads ordinary tensors: these are known at once."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Optional, Set

import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import ModelCode
from ignite_ipu.deferred.tensor.deferred_values import Deferred
from ignite_ipu.deferred.tensor.reads import read
from ignite_ipu.deferred.tensor.tensor import DeferredTensor, WeightView
from ignite_ipu.deferred.tensor.written_tensors import WAITING, WrittenTensor, values_awaited, write_known
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.guards.values import AWAITED, is_left_behind
from ignite_ipu.program.module_state import REGISTRATIONS
from ignite_ipu.program.tensors.raw import shape_of
from ignite_ipu.program.user_code import current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class _Stored:
    """Reads the values that modules get as buffers."""

    def before_registration(self, module: nn.Module, given: Any) -> Optional[torch.Tensor]:
        """Return the tensor to register in place of a value of the step; None for all others.

        Raises:
            CaptureError: Gradients flow through the value.
            EarlyReadError: Nothing can give it yet.
        """
        if type(given) is WrittenTensor:
            _bring(given)
        if not isinstance(given, Deferred):
            return None
        value = given.value
        if torch.is_grad_enabled() and value.shape.requires_grad and (value.live or not value.known):
            raise CaptureError(
                f"{current_line()}: a {type(module).__name__} gets a value of the training step as a buffer, through "
                "which gradients flow. The device has buffers of its own, without gradients. Store value.detach(), or "
                "give the value to the model as an argument."
            )
        with DisableTorchFunctionSubclass():
            return read(value, "a buffer of a module").detach()


def _bring(tensor: torch.Tensor) -> None:
    """Write the values into a tensor that are still to come, for code that has it among its constants."""
    if id(tensor) in _BRINGING:  # a call from before the write is replayed for one of them
        return
    _BRINGING.add(id(tensor))
    try:
        for value in values_awaited(tensor):
            found = read(value, "a module that has the tensor it is written into")
            if not value.known:
                value.take(found)
        write_known()
    finally:
        _BRINGING.discard(id(tensor))


def _refuse(tensor: torch.Tensor) -> None:
    raise CaptureError(
        f"{current_line()}: the model's code reads a tensor of shape {tuple(shape_of(tensor))} from outside (an "
        "attribute, a variable), which stands for a value of the training step. Give it to the model as an argument; "
        "or store a copy without gradients after optimizer.step(): torch.tensor(value.tolist())."
    )


_BRINGING: Set[int] = set()
_STORED = _Stored()


def bring_stored(
    attributes: Iterable[Dict[str, Any]], reads: Callable[[torch.Tensor], bool] = lambda tensor: True
) -> bool:
    """Store values in attributes that hold what stands for these; returns whether others are still to come.

    Values that are not known are read, if no gradients flow through them.

    Args:
        attributes: Of each module.
        reads: Returns whether the model's code reads a tensor; all count by default.

    Raises:
        EarlyReadError: Nothing can give a value yet that the code reads.
    """
    are_awaited = False
    for own in list(attributes):  # a read puts modules back for a while
        for name, held in list(own.items()):
            if not isinstance(held, Deferred) or is_left_behind(held):
                continue
            value = held.value
            if value.known and not value.live:
                own[name] = value.get().detach()
            elif not value.shape.requires_grad and reads(held):
                with DisableTorchFunctionSubclass():
                    own[name] = read(value, "a module that has it as an attribute").detach()
            else:
                are_awaited = True
    return are_awaited


def bring_waiting(code: ModelCode) -> None:
    """Have the values before a call of a model that its code reads: in attributes, and written into other tensors."""
    if code.holds_awaited:
        code.bring_awaited()
    for write in [given() for given in list(WAITING)]:
        for tensor in () if write is None else (write.target, write.base):
            if tensor is not None and code.reads(tensor):
                _bring(tensor)


def follow_stored() -> None:
    """Have values known from now on that modules get."""
    AWAITED.update({DeferredTensor: _refuse, WeightView: _refuse})
    REGISTRATIONS.observe(_STORED)
