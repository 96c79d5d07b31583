"""Outputs of the layers of a model, noted as it is called."""

from __future__ import annotations

import itertools
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import nn

from ignite_ipu.program.tensors.trees import opened


class LayerOutputs:
    """Collects the outputs of a model's layers inside a `with` block, in the order in which they finish.

    A container whose output is its last layer's own is left out. The second call of a layer is named `layer#2`, the
    parts of an output that is no single tensor `layer[0]`. `outputs` has copies, made before later code could change
    them in place. `names` maps each output that was seen to its name in `outputs`; a container maps to its last layer.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: List[Any] = []
        self._calls: Dict[str, int] = {}
        self._seen: Dict[int, str] = {}
        # The tensors seen stay alive, so that no later one gets their identity.
        self._kept: List[torch.Tensor] = []
        self.outputs: Dict[str, torch.Tensor] = {}
        self.names: Dict[str, str] = {}

    def __enter__(self) -> LayerOutputs:
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_hook(self._hook(name or type(self._model).__name__)))
        return self

    def __exit__(self, *error: Any) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._kept.clear()

    def _hook(self, name: str) -> Any:
        def collect(module: nn.Module, arguments: Any, output: Any) -> None:
            call = self._calls[name] = self._calls.get(name, 0) + 1
            label = name if call == 1 else f"{name}#{call}"
            own = {id(child) for child in module.children()}
            for place, tensor in _tensors(output):
                if own and id(tensor) in self._seen:
                    self.names[label + place] = self._seen[id(tensor)]
                    continue
                self._seen[id(tensor)] = self.names[label + place] = label + place
                self._kept.append(tensor)
                self.outputs[label + place] = tensor.detach().clone()

        return collect


def _tensors(value: Any, place: str = "") -> Iterator[Tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
        return
    container = opened(value)
    if container is not None:
        for key, part in zip(container.keys or itertools.count(), container.parts):
            yield from _tensors(part, f"{place}[{key!r}]")
