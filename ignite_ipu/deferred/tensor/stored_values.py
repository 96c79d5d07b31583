"""Values of the step that code stores in modules, where PyTorch reads ordinary tensors: these are known at once."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import nn

from ignite_ipu.deferred.tensor.deferred_values import Deferred
from ignite_ipu.deferred.tensor.reads import read
from ignite_ipu.deferred.tensor.written_tensors import WrittenTensor, answered, write_known
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.guards.values import AWAITED
from ignite_ipu.program.module_state import REGISTRATIONS
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


def _bring(tensor: WrittenTensor) -> None:
    """Write the values into a tensor that are still to come, for code that reads it as an ordinary one."""
    successor: Any = answered(tensor)
    read(successor.value, "a module that has the tensor it is written into")
    write_known()


_STORED = _Stored()


def follow_stored() -> None:
    """Have values known from now on that modules get."""
    AWAITED[WrittenTensor] = _bring
    REGISTRATIONS.observe(_STORED)
