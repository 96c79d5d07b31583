"""Names of the parameters and buffers of the models that a script trains, alike on the host and on the device."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from typing import Any, Dict, List, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.program.module_state import REGISTRATIONS
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.torch_names.modules import PARAMETERS, all_modules, all_named_modules, buffers_of


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of an optimizer's parameters in its order, and of buffers with the tables of modules that hold them."""

    key: Tuple[int, int, List[int]]
    parameters: List[str]
    buffers: List[Tuple[str, Dict[str, Any], str]]


class ModelNames:
    """Finds the models of a script, and the names of its optimizers and of what they train in the models."""

    def __init__(self) -> None:
        # Modules that were called, or whose `parameters()` were, in this order.
        self._modules: List[weakref.ref[nn.Module]] = []
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, Names] = weakref.WeakKeyDictionary()
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, str] = weakref.WeakKeyDictionary()
        # Prefixes of models that an optimizer trains: models of several may have the same names inside. Those that are
        # collected keep theirs.
        self._prefixes: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._numbers, self._numbers_of_optimizers = itertools.count(), itertools.count()

    def note(self, module: nn.Module) -> None:
        """Note a module that is called, or that the script asks for its parameters."""
        if all(known() is not module for known in self._modules):
            self._modules.append(weakref.ref(module))

    def of_optimizer(self, optimizer: torch.optim.Optimizer) -> str:
        """Return the name of an optimizer: its class, and a number in the order of first updates."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = f"{type(optimizer).__name__} {next(self._numbers_of_optimizers)}"
        return self._optimizers[optimizer]

    def of_weights(self, optimizer: torch.optim.Optimizer, order: Sequence[torch.Tensor]) -> Names:
        """Return the names of an optimizer's parameters and of the buffers beside them, looked for when they change.

        A parameter of no known model is named by the optimizer.
        """
        key = (REGISTRATIONS.count, len(self._modules), [id(each) for each in order])
        known = self._known.get(optimizer)
        if known is not None and known.key == key:
            return known
        found: Dict[int, str] = {}
        buffers: List[Tuple[str, Dict[str, Any], str]] = []
        for prefix, root, parameters in self._trained(order):
            for name, parameter in parameters.items():
                found.setdefault(id(parameter), prefix + name)
            for path, part in all_named_modules(root):
                table = buffers_of(part)
                buffers += [(f"{prefix}{path}.{each}" if path else prefix + each, table, each) for each in table]
        label = self.of_optimizer(optimizer)
        called = [found.get(id(each), f"{label}, parameter {number}") for number, each in enumerate(order)]
        names = self._known[optimizer] = Names(key, called, buffers)
        return names

    def _trained(self, order: Sequence[torch.Tensor]) -> List[Tuple[str, nn.Module, Dict[str, torch.Tensor]]]:
        """Return the models that have parameters of an optimizer, each with the prefix of its names and its parameters.

        The first has no prefix if it is alone.
        """
        known = [module for module in (reference() for reference in self._modules) if module is not None]
        inner = {id(child) for module in known for child in all_modules(module) if child is not module}
        roots = [(module, named_tensors(module, PARAMETERS)) for module in known if id(module) not in inner]
        of = {id(each): number for number, (_, named) in reversed([*enumerate(roots)]) for each in named.values()}
        found = [roots[number] for number in dict.fromkeys(of[key] for key in map(id, order) if key in of)]
        for root, _ in found:
            if root not in self._prefixes:
                number = next(self._numbers)
                self._prefixes[root] = f"{type(root).__name__} {number}." if number or len(found) > 1 else ""
        return [(self._prefixes[root], root, named) for root, named in found]
