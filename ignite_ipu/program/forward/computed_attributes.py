"""Attributes of modules that each forward computes from weights alone, as hooks do for pruning and `weight_norm`.

After a call in PyTorch they hold the tensors of that call. A training program keeps them on the device, in buffers that
come to the host with the weights. After an evaluation the host computes them anew, from its own weights.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.program.forward.dependence import Dependence
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.guards.values import leave_behind
from ignite_ipu.torch_names.modules import all_modules, all_named_modules, buffers_of

Place = Tuple[nn.Module, str]


class ComputedAttributes(nn.Module):
    """The attributes of a model's modules that its forward computes from weights alone.

    In training its buffers hold their values on the device, one for each of `places`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: Tuple[Place, ...] = ()
        self.is_searched = False

    def find(
        self, model: nn.Module, inputs: Iterable[torch.Tensor], call: Callable[[], Any], registers: bool
    ) -> List[torch.Tensor]:
        """Find the attributes by calls on the host with these inputs; return their values.

        Values that the first call alone sets up, such as a table, are none of them. `registers` makes buffers for them.
        """
        self.is_searched = True
        first = _attributes(model)
        call()
        before = _attributes(model)
        if all(first.get(place) is value for place, value in before.items()):
            return []
        with Dependence(inputs) as given:
            call()
        found = [
            (place, value)
            for place, value in _attributes(model).items()
            if before.get(place) is not value and value.is_floating_point() and not given.has(value)
        ]
        self.places = tuple(place for place, _ in found)
        values = [value.detach().clone().contiguous() for _, value in found]
        for number, value in enumerate(values if registers else ()):
            self.register_buffer(f"value{number}", value, persistent=False)
        return values

    def keep(self) -> None:
        """Write forward's results into the buffers, in a training program's forward."""
        self.mark()
        for (module, name), buffer in zip(self.places, buffers_of(self).values()):
            assert buffer is not None
            buffer.copy_(module.__dict__[name].detach())

    def mark(self) -> None:
        """Ignore forward's results in comparisons of attributes."""
        for module, name in self.places:
            leave_behind(module.__dict__[name])

    def show(self, values: Optional[Sequence[torch.Tensor]] = None) -> None:
        """Put values into the attributes: the buffers when None, of which every read shows the newest values."""
        for (module, name), value in zip(self.places, list(buffers_of(self).values()) if values is None else values):
            if module.__dict__.get(name) is not value:
                assert value is not None
                leave_behind(value)
                module.__dict__[name] = value

    def computed(self, model: nn.Module, call: Callable[[], Any]) -> List[torch.Tensor]:
        """Return the values that a call of the model on the host puts into the attributes, which are restored."""
        kept = ModuleAttributes(model)
        try:
            call()
            return [module.__dict__[name].detach() for module, name in self.places]
        finally:
            kept.put_back(always=True)

    def names(self, step: nn.Module) -> Set[str]:
        """Return the paths of the attributes within a step."""
        paths = {module: path for path, module in all_named_modules(step)}
        return {f"{paths[module]}.{name}" for module, name in self.places}


def _attributes(model: nn.Module) -> Dict[Place, torch.Tensor]:
    return {
        (module, name): value
        for module in all_modules(model)
        for name, value in module.__dict__.items()
        if isinstance(value, torch.Tensor)
    }
