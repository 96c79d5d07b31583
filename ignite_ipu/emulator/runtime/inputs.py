"""`Inputs`: the tensors of a call as the device takes them, or synthetic data in their place."""

from __future__ import annotations

from typing import Callable, List, Optional, Sequence

import torch

from ignite_ipu.emulator.errors import python_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.options import Options

_INT32 = torch.iinfo(torch.int32)


class Inputs:
    """The inputs of one program.

    Attributes:
        synthetic: Makes the device's synthetic data for an input; None if inputs cross.
    """

    def __init__(self, names: Sequence[str], options: Options) -> None:
        self._names = names
        self.synthetic = _synthetic_data(int(options._Popart._value("syntheticDataMode", 0)))
        self._non_contiguous_seen = False

    def to_device(self, given: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return the inputs as the graph takes them: detached, narrowed from float64 and contiguous."""
        return list(map(self._sent, self._names, given))

    def _sent(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.dtype is torch.float64:
            return tensor.to(torch.float32, memory_format=torch.contiguous_format)
        if tensor.dtype is torch.int64 and self.synthetic is None:
            # PopTorch would cut such values silently; synthetic data replace them.
            low, high = map(int, torch.aminmax(tensor))
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


def _synthetic_data(mode: int) -> Optional[Callable[[torch.Tensor], torch.Tensor]]:
    """Return the device's synthetic data for an input, in one of PopART's modes; None in mode 0, Off.

    Integers may be indices, and become zeros in each of them.
    """
    makers = (None, torch.zeros_like, torch.randn_like, torch.rand_like)
    maker = makers[mode]
    return maker and (lambda value: maker(value) if value.is_floating_point() else torch.zeros_like(value))
