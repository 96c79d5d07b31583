"""`WrittenBuffers`: the buffers of a model that its forward writes."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, List, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.errors import logger
from ignite_ipu.program.forward.integer_buffers import integer_buffers
from ignite_ipu.program.forward.weight_writes import WeightWriteGuard
from ignite_ipu.program.host_weights import HostWeights
from ignite_ipu.program.micro_batches import first_micro_batch
from ignite_ipu.program.tensors.raw import named_tensors, plain
from ignite_ipu.torch_names.modules import BUFFERS, NormWithStatistics, all_named_modules
from ignite_ipu.torch_names.tensors import memory_of, version_of


class WrittenBuffers:
    """The buffers that forward of a step writes, found by a call on the host before the first compilation.

    PopTorch traces a shallow copy of a step, which has this object in common with it.

    Args:
        model: The user's model in the step.
        host_weights: For calls of the step on the host.
        returned: Whether the buffers come back with the outputs, as in inference.

    Attributes:
        names: Names of the model's buffers that come back with the outputs; empty until they are known.
    """

    def __init__(self, model: nn.Module, host_weights: HostWeights, returned: bool) -> None:
        self._model, self._host_weights, self._returned = model, host_weights, returned
        self._is_known = False
        self.names: Sequence[str] = ()

    def find(self, step: nn.Module, leaves: Sequence[Any], micro_batches: int) -> Sequence[str]:
        """Return `names`, found for a batch's leaves.

        Where the host cannot call the model, all its floating-point buffers count that forward may write into.
        """
        if not self._is_known:
            floats = _writable_buffers(self._model) if self._returned else []
            integers = integer_buffers(self._model) if self._returned else []
            written = self.on_host(step, self._model, [*floats, *integers], leaves, micro_batches)
            self.names, self._is_known = floats if written is None else written, True
        return self.names

    def integers(self, step: nn.Module, leaves: Sequence[Any], micro_batches: int) -> List[str]:
        """Return the names of the step's buffers of integers that forward writes, for a batch's leaves.

        A buffer that it writes is a constant of the program, with PopTorch's warning, if the host cannot call it.
        """
        names = integer_buffers(step)
        if self._returned:
            written = {f"model.{name}" for name in self.find(step, leaves, micro_batches)}
            return [name for name in names if name in written]
        return self.on_host(step, step, names, leaves, micro_batches) or []

    def updates_statistics(self, step: nn.Module) -> bool:
        """Return whether forward of the step updates batch statistics of normalisations."""
        return bool(_statistics_in_training(step))

    def beside(self, output: Any, model: nn.Module) -> Any:
        """Return an output, and the buffers that forward has written, each with one row per micro-batch."""
        if not self.names:
            return output
        buffers = dict(model.named_buffers(remove_duplicate=False))
        return (output, *[buffers[name].reshape(1, *buffers[name].shape) for name in self.names])

    def on_host(
        self,
        step: nn.Module,
        module: nn.Module,
        names: Sequence[str],
        leaves: Sequence[Any],
        micro_batches: int,
        watched: Optional[ContextManager[Any]] = None,
    ) -> Optional[List[str]]:
        """Return those of some buffers of a module that a call on the host writes; None if it fails.

        The call is made within a context that has `watched` it then.
        """
        if not names and watched is None:
            return []
        inputs = first_micro_batch(leaves, micro_batches)
        try:
            with self._host_weights.tried_in(step, step):
                named = named_tensors(module, BUFFERS)
                before = {name: (named[name], named[name].clone(), version_of(named[name])) for name in names}
                with WeightWriteGuard(self._model) as guard, watched or contextlib.nullcontext():
                    step.forward(*inputs)
        except Exception as error:
            logger.info("%s cannot be called on the host: %s", type(self._model).__qualname__, error)
            return None
        running = _statistics_in_training(module)
        return [
            name
            for name, (now, then, version) in before.items()
            if name in running
            or memory_of(now) in guard.written
            or version_of(now) != version
            or not torch.equal(now, then)
        ]


def _statistics_in_training(model: nn.Module) -> List[str]:
    """Return the names of the batch statistics that normalisations in training mode write."""
    return [
        f"{path}.{name}" if path else name
        for path, module in all_named_modules(model)
        if isinstance(module, NormWithStatistics) and module.training
        for name in ("running_mean", "running_var")
        if getattr(module, name) is not None
    ]


def _writable_buffers(model: nn.Module) -> List[str]:
    """Return the names of floating-point buffers, but for the statistics of normalisations in evaluation mode."""
    norms = {
        path
        for path, module in all_named_modules(model)
        if isinstance(module, NormWithStatistics) and not module.training
    }
    return [
        name
        for name, buffer in named_tensors(model, BUFFERS).items()
        if plain(buffer).is_floating_point() and name.rpartition(".")[0] not in norms
    ]
