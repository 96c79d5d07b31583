"""`HostCopy`: the weights on the host, which are a model's parameters and buffers."""

from __future__ import annotations

from typing import Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.errors import logger
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.session.hooks import SessionHooks
from ignite_ipu.session.weights.batch_counters import BatchCounters
from ignite_ipu.session.weights.held_tensors import HeldTensors
from ignite_ipu.session.weights.program_copies import ProgramCopies
from ignite_ipu.torch_names.dispatch import jit_trace_left
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class HostCopy:
    """The host's copy of a model's weights.

    Args:
        model: The model.
        programs: The copies of its programs, from which the newest weights come.
        hooks: The session's.

    Attributes:
        held: The tensors whose newest values it follows.
        counters: The counters of batches, which the host advances.
        is_stale: Whether training took place since this copy was downloaded or written.
    """

    def __init__(self, model: nn.Module, programs: ProgramCopies, hooks: SessionHooks) -> None:
        self.held = HeldTensors(model)
        self.counters = BatchCounters()
        self.is_stale = False
        self._programs, self._hooks = programs, hooks
        self._warned_of_aliases = False

    def warn_of_aliases(self) -> None:
        """Warn, once, that tensors with the memory of weights cost a download after each update."""
        if not self._warned_of_aliases:
            self._warned_of_aliases = True
            logger.warning(
                "The loop keeps tensors or arrays that share the memory of weights (parameter.data, views, numpy(), "
                "or taken out of a state_dict()) over updates. In eager PyTorch they change with the weights, so "
                "these are copied to the host after each update. A clone() keeps the values, and saves the copies."
            )

    def download(self) -> bool:
        """Copy the newest weights, with retries, and count batches; returns whether PopTorch made a copy."""
        programs = self._programs
        with jit_trace_left(), self.held.put_back():
            # After a retry it may be another executor.
            copied = self._hooks.copy(
                lambda: programs.training is not None and programs.training.executor.copyWeightsToHostIfNeeded()
            )
            self.counters.advance()
        return copied

    def write(self, values: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Write values into tensors, which autograd does not record."""
        with torch.no_grad(), DisableTorchFunctionSubclass():
            for tensor, value in values:
                plain(tensor).copy_(value)
