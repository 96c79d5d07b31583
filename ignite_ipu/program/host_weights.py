"""`HostWeights`: ordinary tensors in the place of a step's weights, so that the host can call it."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Tuple, Type

import torch
from torch import nn

from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.integer_buffers import IntegerBuffers
from ignite_ipu.program.forward.model_libraries import without_checkpointing, without_generation_cache
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.forward.randomness import draws_put_back
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS, all_named_modules
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# Buffers of PyTorch's from which nothing is computed.
_COUNTERS = ("num_batches_tracked", "n_averaged")
# Tensors that are no constants; counters of batches, each after the user's own; other buffers by name.
_OnHost = Tuple[List[torch.Tensor], List[Tuple[torch.Tensor, torch.Tensor]], List[Tuple[str, torch.Tensor]]]


class HostWeights:
    """Ordinary tensors for calls of a step on the host.

    Args:
        unwrapped: The step's class before PopTorch wraps it.
        model: The user's model in it.
        integers: The buffers of integers that are carried on the device.
    """

    def __init__(self, unwrapped: Type[nn.Module], model: nn.Module, integers: IntegerBuffers) -> None:
        self._unwrapped, self._model, self._integers = unwrapped, model, integers

    @contextlib.contextmanager
    def put_into(self, step: Any) -> Iterator[_OnHost]:
        """Let a step be called on the host in the `with` block, with ordinary tensors as weights; gives these."""
        found: Dict[int, torch.Tensor] = {}
        # Reading forward of a wrapped one downloads.
        wrapped, step.__class__ = type(step), self._unwrapped
        before, variable, counters, buffers = [], [], [], []
        # A copy that is made in inference mode counts no writes.
        with torch.inference_mode(False), torch.no_grad(), DisableTorchFunctionSubclass():
            modules = all_named_modules(step)
            for kind in (PARAMETERS, BUFFERS):
                tables = [(path, module.__dict__[kind]) for path, module in modules]
                for path, tensors in tables:
                    if not tensors:
                        continue
                    before.append((tensors, dict(tensors)))
                    # Pruning and parametrizations register the same tensors in another order.
                    for name, tensor in sorted(tensors.items()):
                        if tensor is None or id(tensor) in found:
                            continue
                        # Buffers may be written into. The newest values of weights are not needed.
                        now = torch.Tensor.detach(tensor)
                        now = found[id(tensor)] = now.clone() if kind == BUFFERS else now
                        is_kept = now.is_floating_point() or tensor in self._integers
                        if is_kept or name in _COUNTERS:
                            variable.append(now)
                        if kind == BUFFERS and (is_kept or name not in _COUNTERS):
                            buffers.append((f"{path}.{name}", now))
                        elif name == _COUNTERS[0]:
                            counters.append((tensor, now))
                    tensors.update({name: found[id(tensor)] for name, tensor in tensors.items() if tensor is not None})
        try:
            # Without gradients PyTorch's checkpoints warn that there are none.
            configured = without_generation_cache([each for _, each in modules])
            with EAGER, without_checkpointing(False, self._model), configured:
                with torch.inference_mode(False), torch.no_grad():
                    with torch.autocast("cpu", enabled=False), DisableTorchFunctionSubclass():
                        yield variable, counters, buffers
        finally:
            for tensors, values in before:
                tensors.update(values)
            object.__setattr__(step, "__class__", wrapped)

    @contextlib.contextmanager
    def tried_in(self, step: Any, restored: nn.Module) -> Iterator[None]:
        """Let a step be called as by `put_into`; undo its draws, and the attributes that it sets in a module."""
        kept = ModuleAttributes(restored)
        try:
            with draws_put_back(), self.put_into(step):
                yield
        finally:
            kept.put_back(always=True)
