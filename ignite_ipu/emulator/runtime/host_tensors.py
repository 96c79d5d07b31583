"""The host's side of a program's weights and buffers: the tensors that the model has under the compiled names."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.values.wrapping import plain, storages
from ignite_ipu.torch_names import lists
from ignite_ipu.torch_names.modules import BUFFERS, MODULES, PARAMETERS, all_modules


class HostTensors:
    """A model's parameters and buffers, by name: those that are copied to the device and back.

    `compiled` are the parameters that the model had when it was compiled, which the optimizer's groups hold.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._reported: Set[str] = set()
        self._left_out: Dict[str, Any] = {}  # names with the shapes of the replacements, None for none
        self.compiled: Dict[str, nn.Parameter] = dict(model.named_parameters())
        self.parameters = dict(self.compiled)
        self.buffers: Dict[str, torch.Tensor] = dict(model.named_buffers())
        self._places = _places(model)

    def tensors(self) -> Dict[str, torch.Tensor]:
        return {**self.parameters, **self.buffers}

    def follow(self) -> bool:
        """Take over tensors that replaced others, as `load_state_dict(assign=True)` does; returns whether any did.

        One that is gone, or has another shape, is left out: the program keeps the old one, with `warn_of_left_out`.
        """
        if all([table.get(name) is held for table, name, held in self._places]):
            return False
        self._places = _places(self._model)
        followed = self._follow(self.parameters, dict(self._model.named_parameters()))
        return self._follow(self.buffers, dict(self._model.named_buffers())) or followed

    def _follow(self, own: Dict[str, Any], present: Mapping[str, torch.Tensor]) -> bool:
        changed = False
        for name, tensor in own.items():
            replacement = present.get(name)
            if replacement is tensor:
                continue
            if replacement is not None and plain(replacement).shape == plain(tensor).shape:
                own[name], changed = replacement, True
            elif name not in self._reported:
                self._left_out[name] = None if replacement is None else tuple(plain(replacement).shape)
        return changed

    def warn_of_left_out(self) -> None:
        """Warn once of each tensor that was left out, before the program runs on with it; a destroyed one does not."""
        for name, shape in self._left_out.items():
            logger.warning(
                "%s %s since the model was compiled: the program goes on with the tensor that it was compiled with. "
                "Call destroy() and compile the model again.",
                name,
                "is gone" if shape is None else f"was replaced by one of shape {shape}",
            )
        self._reported.update(self._left_out)
        self._left_out.clear()


def _places(model: nn.Module) -> List[Tuple[Dict[str, Any], str, Any]]:
    """Return the places of the modules and tensors of a model, as tables and names in them, with their values."""
    kinds = (MODULES, PARAMETERS, BUFFERS)
    tables = [module.__dict__[kind] for module in all_modules(model) for kind in kinds]
    return [(table, name, held) for table in tables for name, held in table.items()]


def receive(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write values of the device into parameters and buffers of the model.

    The device stores every element separately. A host tensor that does not, such as an expanded one, gets memory of its
    own when an element has changed. So does one of another shape (`VariableRetrievalMode.AllReplicas`: the host
    receives more slices than it uploaded).
    """
    to: List[torch.Tensor] = []
    copied: List[torch.Tensor] = []
    for tensor, host, value in zip(tensors, storages(tensors), values):
        if host.shape == value.shape and (host.is_contiguous() or not shares_memory(host)):
            to.append(host)
            copied.append(value)
        elif host.shape != value.shape or not torch.equal(host, value.to(host.dtype)):
            tensor.data = value.to(host.dtype, copy=True)
    if to:  # PyTorch takes no empty lists
        lists.copy_(to, copied)


def shares_memory(tensor: torch.Tensor) -> bool:
    """Return whether elements of a tensor lie in the same memory as others of it, as those of an expanded one do."""
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride()))
