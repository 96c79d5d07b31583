"""The state that code of a model may change in calls on the host, to be as it was before them.

A call that shows that no program can run the code is made again, function by function, as if it were the first.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections import deque
from collections.abc import Iterator
from itertools import chain
from types import CellType, FunctionType, GeneratorType, MemberDescriptorType, ModuleType
from typing import Any, Container, Dict, List, Optional, Tuple

import numpy as np
import torch
from torch import nn

from ignite_ipu.program.forward.randomness import (
    GENERATORS,
    GLOBAL,
    draw_from,
    host_random_state,
    moved,
    name_of,
    state_of,
)
from ignite_ipu.program.guards.decisions import Decisions
from ignite_ipu.program.guards.python_state import named_by
from ignite_ipu.program.tensors.raw import is_lazy, named_tensors, plain
from ignite_ipu.program.tensors.trees import restore_contents
from ignite_ipu.torch_names.modules import BUFFERS, MODULES, PARAMETERS, all_modules, all_named_buffers
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, memory_of

_TABLES = (PARAMETERS, BUFFERS, MODULES)
_CONTAINERS = (list, dict, set, deque)
_WITH_ELEMENTS = (*_CONTAINERS, tuple)
_PLAIN = frozenset([bool, int, float, str, type(None), nn.Parameter])  # most attributes of modules
_MOST_ELEMENTS = 1024  # of a container that is looked into
_GIVEN = ("__defaults__", "__kwdefaults__")
_ABSENT: Any = object()


class StateBefore:
    """State of a model's code, and of its `given` arguments, at the time that it is made.

    It has the attributes of modules, the values that the code names elsewhere, the contents of both, the values of
    buffers, and the random numbers of the host.

    Attributes:
        named: The values that the code names.
        decisions: Those that it decides by.
    """

    def __init__(self, model: nn.Module, given: Any = ()) -> None:
        named = self.named = named_by(model)
        self.decisions = Decisions(model, named=named)
        self._before = self.decisions.state.values()
        self._places = [(owner, name, _read(owner, name)) for owner, name in named.owners if name]
        # A look into __dict__ in the ordinary way counts as a read of all attributes.
        self._tables: List[Dict[str, Any]] = [object.__getattribute__(each, "__dict__") for each in all_modules(model)]
        self._tables += [own[kind] for own in self._tables for kind in _TABLES if kind in own]
        arguments = _reached_from([given])
        objects = [*named.objects, *arguments]
        objects = [each for each in objects if not isinstance(each, (nn.Module, torch.Tensor, type, ModuleType))]
        self._tables += [own for own in map(_attributes, objects) if own is not None]
        reached = _reached_from([*self._tables, *objects, *[value for *_, value in self._places]])
        containers = [each for each in reached if isinstance(each, _CONTAINERS)]
        self._contents = [(each, each.copy()) for each in containers if each]
        self._empty = [each for each in containers if not each]  # most tables of hooks are
        iterators = [*named.iterators, *[each for each in arguments if isinstance(each, (*GENERATORS, Iterator))]]
        generators = [each for each in iterators if isinstance(each, GENERATORS)]
        written = [each for each in reached if isinstance(each, (np.ndarray, torch.Generator)) or _is_bare(each)]
        written += [each for each in generators if not isinstance(each, random.SystemRandom)]
        self._states = [(each, _state(each)) for each in {id(each): each for each in written}.values()]
        with DisableTorchFunctionSubclass():
            tensors = {name: each for name, each in named_tensors(model).items() if each.layout is torch.strided}
            self._memory = [(each, plain(each)) for each in tensors.values() if not is_lazy(each)]
            self._values = [
                (plain(each), plain(each).clone()) for _, each in all_named_buffers(model) if not is_lazy(each)
            ]
        self._random = host_random_state()
        self._drawn_from = [*GLOBAL, *iterators]
        self._drawn = list(map(state_of, self._drawn_from))

    def put_back(self) -> List[str]:
        """Have all as it was, and return the names of the values that cannot be."""
        for owner, name, value in self._places:
            if _read(owner, name) is not value:
                _write(owner, name, value)
        emptied: List[Tuple[Any, Any]] = [(each, {} if isinstance(each, dict) else ()) for each in self._empty if each]
        for container, before in [*self._contents, *emptied]:
            if isinstance(container, set):
                if container != before:
                    container.clear()
                    container.update(before)
            else:
                restore_contents(container, before)
        with torch.no_grad(), DisableTorchFunctionSubclass():
            for tensor, memory in self._memory:
                if memory_of(tensor) != memory_of(memory):
                    tensor.data = memory
            for tensor, values in self._values:
                if not torch.equal(tensor, values):
                    tensor.copy_(values)
        draw_from(self._random)
        for value, before in self._states:
            _set_state(value, before)
        # A tensor with its values shows that it was written.
        left = self.changed(but={id(value) for value, _ in self._states})
        return left + [name_of(each) for each in self._drawn_from if _hides_its_place(each)]

    def changed(self, but: Container[int] = ()) -> List[str]:
        """Return the names of the Python values that are others now, `but` for objects with these ids."""
        state = self.decisions.state
        if not state.complete:
            return ["new ones"]
        state.values()
        left_out = [number for number, value in enumerate(state.values.objects) if id(value) in but]
        return [*state.changed(self._before, left_out), *moved(self._drawn_from, self._drawn)]


def _attributes(value: Any) -> Optional[Dict[str, Any]]:
    """Return the attributes of an object, None if it has no table of them."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return own if type(own) is dict else None


def _reached_from(values: List[Any]) -> List[Any]:
    """Return values, and those within containers among them, but for numbers and the like."""
    found: Dict[int, Any] = {}
    while values:
        new = [each for each in values if type(each) not in _PLAIN and id(each) not in found]
        found.update(zip(map(id, new), new))
        within = [each for each in new if isinstance(each, _WITH_ELEMENTS) and 0 < len(each) <= _MOST_ELEMENTS]
        values = [*chain.from_iterable([each.values() if isinstance(each, dict) else each for each in within])]
    return list(found.values())


def _is_bare(value: Any) -> bool:
    """Return whether a value is a tensor of the host with values of its own."""
    return type(value) is torch.Tensor and value.layout is torch.strided and value.device.type == "cpu"


def _hides_its_place(iterator: Any) -> bool:
    """Return whether nothing shows how far an iterator has come, as one that goes round."""
    shows = isinstance(iterator, (*GENERATORS, GeneratorType, itertools.count)) or hasattr(iterator, "__length_hint__")
    return isinstance(iterator, Iterator) and not shows


def _is_slot(owner: Any, name: str) -> bool:
    """Return whether an object has a value outside its table of attributes, as a function has its defaults."""
    kind = getattr(type(owner), name, None)
    return isinstance(kind, MemberDescriptorType) or (isinstance(owner, FunctionType) and name in _GIVEN)


def _read(owner: Any, name: str) -> Any:
    if isinstance(owner, CellType):
        return getattr(owner, "cell_contents", _ABSENT)
    if _is_slot(owner, name):
        return getattr(owner, name, _ABSENT)
    own = owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})
    return own.get(name, _ABSENT)


def _write(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, CellType):
        if value is _ABSENT:
            del owner.cell_contents
        else:
            owner.cell_contents = value
    elif isinstance(owner, type) or _is_slot(owner, name):
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    else:
        own = owner if isinstance(owner, dict) else vars(owner)
        if value is _ABSENT:
            del own[name]
        else:
            own[name] = value


def _state(value: Any) -> Any:
    """Return the state of a random generator, or the values of an array or a tensor, for `_set_state`."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return copy.deepcopy(_bits_of(value).state)


def _set_state(value: Any, state: Any) -> None:
    """Let a random generator draw from an earlier state, or an array or a tensor have earlier values."""
    if isinstance(value, np.ndarray):
        value[...] = state
    elif isinstance(value, torch.Tensor):
        if not torch.equal(value, state):
            value.data.copy_(state)
    elif isinstance(value, torch.Generator):
        value.set_state(state)
    elif isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    else:
        _bits_of(value).state = state


def _bits_of(generator: Any) -> Any:
    return generator.bit_generator if isinstance(generator, np.random.Generator) else generator
