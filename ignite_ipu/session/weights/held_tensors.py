"""`HeldTensors`: the parameters and buffers whose newest values a session follows."""

from __future__ import annotations

import contextlib
import weakref
from typing import ContextManager, Dict, List, Optional, Tuple

import torch
from torch import nn

from ignite_ipu.program.module_tables import CHANGES, follow_tables
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.session.weights.parts import Parts
from ignite_ipu.torch_names.modules import buffers_of, modules_of, parameters_of


class HeldTensors:
    """The tensors that a model had when its session began, and those of training programs' modules beside it.

    Entries are only ever added, so that their positions stay the same.

    Attributes:
        names: Their names.
        tensors: The tensors, the model's parameters and buffers first.
        parts: The modules that the model consisted of at the last look, or before its tensors were replaced.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model, self._named = weakref.ref(model), named_tensors(model)
        self._changes = 0
        self._places: Optional[List[Tuple[int, str, int]]] = None
        self.names: List[str] = list(self._named)
        self.tensors: List[torch.Tensor] = list(self._named.values())
        self._beside: weakref.WeakKeyDictionary[nn.Module, Dict[str, torch.Tensor]] = weakref.WeakKeyDictionary()
        self._look()

    def include(self, step: nn.Module) -> List[torch.Tensor]:
        """Include the tensors of a training program's module beside the model, and return the new ones."""
        named = _beside_the_model(step)
        if named:
            self._beside[step] = named
            self._look()
        known = {id(tensor) for tensor in self.tensors}
        new = {name: tensor for name, tensor in named.items() if id(tensor) not in known}
        self.names += new
        self.tensors += new.values()
        return list(new.values())

    def leave_out(self, step: nn.Module) -> None:
        """Allow the tensors of an included module beside the model to be replaced again."""
        self._beside.pop(step, None)

    @property
    def changes(self) -> int:
        """The number of times so far that tensors or modules were found to be added, replaced or removed."""
        if self._seen != CHANGES.count:
            self._changes += self._look()
        return self._changes

    def _look(self) -> bool:
        """Note the tensors and modules that are in the tables of all modules; returns whether they are others.

        The tables are followed from then on.
        """
        model = self._model()
        beside = [part for step in self._beside for name, part in modules_of(step).items() if name != "model" and part]
        modules = [] if model is None else [each for part in (model, *beside) for each in part.modules()]
        follow_tables(modules)
        self._seen = CHANGES.count
        tables = [table(module) for module in modules for table in (parameters_of, buffers_of, modules_of)]
        places = [(at, name, id(entry)) for at, table in enumerate(tables) for name, entry in table.items()]
        if places == self._places:
            return False
        self._places = places
        self._entries = [entry for table in tables for entry in table.values()]  # so that each id stays its own
        self._is_replaced = model is not None and bool(self.replaced(model))
        self.keep_parts()
        return True

    def keep_parts(self) -> None:
        """Note the classes and hooks of the modules, of which no table tells, before a call that they take part in."""
        model = self._model()
        if model is not None and not self.is_replaced:
            self.parts = Parts(model)

    @property
    def is_replaced(self) -> bool:
        """True if the model has other tensors than at first."""
        if self._seen != CHANGES.count:
            self._changes += self._look()
        return self._is_replaced

    def replaced(self, model: nn.Module) -> List[str]:
        """Return the names of parameters and buffers that are not the ones that the model had at first."""
        return _differing(self._named, named_tensors(model))

    def replaced_beside(self) -> List[str]:
        """Return the names of replaced tensors of training programs beside the model."""
        return [name for step, named in self._beside.items() for name in _differing(named, _beside_the_model(step))]

    def positions(self, model: nn.Module) -> Dict[str, int]:
        """Return the positions of the tensors that the model still has, by their keys in its state dictionary."""
        place = {id(tensor): number for number, tensor in enumerate(self.tensors)}
        named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        return {name: place[id(tensor)] for name, tensor in named if id(tensor) in place}

    def put_back(self) -> ContextManager[None]:
        """Return a context in which the model consists of the parts of before its tensors were replaced, if they were.

        Calls that were recorded then are computed with these, and PopTorch copies weights into them by name. Tensors
        that came in the meantime are on no device.
        """
        return self.parts.put_back() if self.is_replaced else contextlib.nullcontext()


def _differing(before: Dict[str, torch.Tensor], now: Dict[str, torch.Tensor]) -> List[str]:
    names = [*before, *(name for name in now if name not in before)]
    return [name for name in names if now.get(name) is not before.get(name)]


def _beside_the_model(step: nn.Module) -> Dict[str, torch.Tensor]:
    """Return by name the tensors of a program's module outside its child `model`, such as a loss's buffers."""
    return {
        f"{prefix}.{name}": tensor
        for prefix, part in modules_of(step).items()
        if part is not None and prefix != "model"
        for name, tensor in named_tensors(part).items()
    }
