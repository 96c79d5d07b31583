"""`ShownBuffers`: buffers whose values the code of a model may read while it is traced."""

from __future__ import annotations

from typing import Dict, Optional

import torch
from torch import nn

from ignite_ipu.program.forward.constants import HostConstants
from ignite_ipu.program.tensors.raw import named_tensors, plain, tensors_of
from ignite_ipu.program.user_code import Line
from ignite_ipu.torch_names.modules import BUFFERS, NormWithStatistics, all_named_modules

# Elements of a buffer whose values code may read.
_MOST_SHOWN = 4096


class ShownBuffers:
    """Values of small buffers, but for statistics, for one compilation.

    Attributes:
        read: Names of the buffers whose values the code has read, with the line that reads each first.
    """

    def __init__(self) -> None:
        self.read: Dict[str, Line] = {}
        self._values: Dict[str, torch.Tensor] = {}
        self._traced: Optional[HostConstants] = None

    def keep(self, step: nn.Module) -> None:
        """Keep the values that the buffers of a step have before it is compiled."""
        self.read.clear()
        self._values.clear()
        modules = all_named_modules(step)
        norms = [module for _, module in modules if isinstance(module, NormWithStatistics)]
        running = {id(each) for norm in norms for each in norm.buffers()}
        for name, buffer in tensors_of(modules, BUFFERS).items():
            value = plain(buffer)
            if id(buffer) not in running and 0 < value.numel() <= _MOST_SHOWN:
                self._values[name] = value.clone()

    def constants(self, step: nn.Module) -> HostConstants:
        """Return a context in which the code of a step, which is traced, may read these values."""
        traced = named_tensors(step, BUFFERS) if self._values else {}
        self._traced = HostConstants({name: (traced[name], value) for name, value in self._values.items()}, self.read)
        return self._traced

    def constant(self, tensor: torch.Tensor) -> Optional[torch.Tensor]:
        """Return the values of a tensor of the trace that depends on no data, None for others."""
        return None if self._traced is None else self._traced.value_of(tensor)

    def forget_trace(self) -> None:
        """Let the tensors of the trace go."""
        self._traced = None
