"""One call's tensors on their way to the device and, where forward writes to them, back."""

from __future__ import annotations

from typing import List, Sequence

import torch

from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.logs import logger

_INT32 = torch.iinfo(torch.int32)


class Transfer:
    """What an executor does to its inputs: it detaches them, narrows float64 and makes them contiguous."""

    def __init__(self) -> None:
        self._non_contiguous_seen = False

    def to_device(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return the inputs as the graph takes them.

        Raises:
            Error: An int64 input holds a value that the device's int32 has not; PopTorch would cut it silently.
        """
        return [self._sent(name, tensor) for name, tensor in zip(names, tensors)]

    def write_back(self, places: Sequence[int], sent: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> None:
        """Copy the inputs that forward modified in place into the caller's tensors, where they are not the same."""
        for place in places:
            if sent[place].data_ptr() != given[place].data_ptr():
                given[place].detach().copy_(sent[place])

    def _sent(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.dtype is torch.float64:
            return tensor.to(torch.float32, memory_format=torch.contiguous_format)
        if tensor.dtype is torch.int64:
            low, high = (int(value) for value in torch.aminmax(tensor))
            if low < _INT32.min or high > _INT32.max:
                raise python_error(
                    f"Input {name} of torch.int64 holds values from {low} to {high}: the device's integers are int32 "
                    f"({_INT32.min} to {_INT32.max})."
                )
        if tensor.is_contiguous():
            return tensor
        if not self._non_contiguous_seen:
            logger.warning("At least one input tensor is not contiguous (%s): it is copied on every call.", name)
            self._non_contiguous_seen = True
        return tensor.contiguous()
