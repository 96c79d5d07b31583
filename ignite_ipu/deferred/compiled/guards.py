"""Forwards that no compiled program can follow: packed sequences, derivatives, and buffers that are replaced."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.structure import refuse_sparse
from ignite_ipu.deferred.tensor.device_gradient import ON_THE_HOST
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.function_mode import FunctionGuard
from ignite_ipu.program.user_code import current_line

_LAYOUT: Any = torch.Tensor.layout.__get__  # type: ignore[attr-defined]
_PACK = torch._VF._pack_padded_sequence
_DERIVATIVES = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)


class ForwardGuard(FunctionGuard):
    """Refuses calls that no compiled program makes, in its `with` block, where a model is tried or traced."""

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        for value in args:
            if type(value) is torch.Tensor and value.layout is not torch.strided and func is not _LAYOUT:
                refuse_sparse(value, current_line())
        if func is _PACK:
            raise CaptureError(
                f"pack_padded_sequence at {current_line()} makes a tensor whose shape depends on the lengths, and a "
                "compiled program has fixed shapes. Leave out the packing, which computes the same up to each "
                "sequence's end, and take what is wanted from there: output[torch.arange(n), lengths - 1] is the last "
                "output, and a mask of the lengths leaves the padding out of sums. (The backward direction of a "
                "bidirectional layer sees the padding first.)"
            )
        if func in _DERIVATIVES:
            raise CaptureError(
                f"{func.__name__}() at {current_line()} differentiates within the forward of a model, but a compiled "
                "program has one backward pass, that of its loss. Write the derivative out in forward. "
                f"{ON_THE_HOST}"
            )


class HeldBuffers:
    """A model's buffers before a call, in whose place its code may not put others, as for a cache that grows."""

    def __init__(self, model: nn.Module) -> None:
        self._name = type(model).__name__
        # A look into __dict__ in the ordinary way counts as a read of all attributes.
        found: List[Dict[str, Any]] = [object.__getattribute__(module, "__dict__") for module in model.modules()]
        found += [each["_buffers"] for each in found]
        self._attributes: List[Tuple[Dict[str, Any], Dict[str, Any]]] = [(each, dict(each)) for each in found]

    def put_back(self) -> None:
        """Put back buffers, and the attributes in which a call may have noted that it has replaced them."""
        for now, then in self._attributes:
            now.clear()
            now.update(then)

    def check(self, before: Dict[str, torch.Tensor], after: Dict[str, torch.Tensor]) -> None:
        """Refuse a call that has replaced buffers, and put them back."""
        replaced = [path for path, buffer in before.items() if after.get(path) is not buffer]
        if not replaced:
            return
        self.put_back()
        raise CaptureError(
            f"The forward of {self._name}, called at {current_line()}, puts another tensor in the place of the buffer "
            f"{listed(replaced)}, but a device keeps the tensor that the model was prepared with. Write into that in "
            "place (copy_()); or, where it is a cache that grows, make it long enough before the model is prepared, as "
            "by a call with the longest input."
        )
