"""Draws of a forward from the host in every call: a trace takes them once, and a program keeps them.

Random numbers of Python, of numpy and of a `torch.Generator`, the next element of an iterator, the time of day.
"""

from __future__ import annotations

import datetime
import functools
import gc
import inspect
import itertools
import operator
import os
import random
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any, Callable, Dict, Hashable, List, Set, Tuple

import numpy as np
import torch

from ignite_ipu.program.function_mode import FunctionGuard

__all__ = ["Draws", "generator_states"]

_TorchGenerator: Any = torch._C.Generator
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)
_PLAIN = (int, float, str, bytes, type(None))
_COLLECTIONS = (list, tuple, dict)
_DEEPEST = 4
_LONGEST = 64
# What may say another thing in every call.
_SOURCES = (os.urandom, random.Random, random.SystemRandom, datetime.date, datetime.datetime)
_SOURCE_MODULES = frozenset(["time", "secrets", "uuid"])
# A seed that nobody else chooses.
_MARK = 0x1691_7E19_0


class Draws(FunctionGuard):
    """Notes what is taken from random generators and iterators in its `with` block.

    A `torch.Generator` is seen when PyTorch's functions are given it, everything else by its state since `look_at`.

    Attributes:
        asked_outside: Whether the time was asked for, or random bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked_outside = False
        self._before = generator_states()
        self._put_back = [_puts_back(random), _puts_back(np.random)]
        self._known: Dict[int, Tuple[Any, Hashable]] = {}
        # By `id`, generators of torch with what puts their states back.
        self._marked: Dict[int, Tuple[Any, Callable[[], Any]]] = {}
        # In order, each once.
        self._drawn: Dict[str, None] = {}

    def look_at(self, value: Any) -> bool:
        """Note the state of a random generator or an iterator; returns whether the value is one.

        Of a function it is noted what its code names.
        """
        kind = type(value)
        if issubclass(kind, FunctionType):
            self._look_at_names(value)
        elif issubclass(kind, _TorchGenerator):
            self._mark(value)
            return True
        if not issubclass(kind, (*_GENERATORS, Iterator)):
            return False
        # The generator of the operating system has no state.
        if id(value) not in self._known and not issubclass(kind, random.SystemRandom):
            self._known[id(value)] = (value, _state(value))
            if issubclass(kind, _GENERATORS):
                self._put_back.append(_puts_back(value))
        return True

    def _look_at_names(self, function: FunctionType) -> None:
        """Find out whether code names what says another thing in every call, or what seeds torch."""
        for named in _named_by(function):
            if named is torch.manual_seed:
                self._mark(torch.default_generator)
            module = getattr(named, "__name__" if isinstance(named, ModuleType) else "__module__", "")
            self.asked_outside |= module in _SOURCE_MODULES or any(named is each for each in _SOURCES)
            self.asked_outside |= isinstance(getattr(named, "__self__", None), random.SystemRandom)

    def unmark(self) -> None:
        """Let generators that nobody has seeded go on where they were."""
        for generator, put_back in self._marked.values():
            if generator.initial_seed() == _MARK:
                put_back()
            elif generator is torch.default_generator:
                self._drawn["the seed of torch: a device draws from a stream of its own"] = None
        self._marked.clear()

    def _mark(self, generator: torch.Generator) -> None:
        """Give a generator a seed by which to tell whether others have seeded it."""
        if id(generator) not in self._marked:
            put_back = _puts_back(generator)
            self._put_back.append(put_back)
            self._marked[id(generator)] = (generator, put_back)
            generator.manual_seed(_MARK)

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Note a generator that PyTorch draws from, unless the call has seeded or made it itself."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, _TorchGenerator) and not self._own_stream(value):
                self._drawn["the state of a torch.Generator: draw without generator="] = None

    def _own_stream(self, generator: Any) -> bool:
        """Tell whether a draw begins a stream that the call has chosen; else that of before goes on."""
        if id(generator) not in self._marked:
            put_back = _puts_back(generator)
            start = torch.Generator().manual_seed(generator.initial_seed()).get_state()
            if generator is torch.default_generator or not torch.equal(start, generator.get_state()):
                self._put_back.append(put_back)
                return False
            self._marked[id(generator)] = (generator, put_back)
        generator, put_back = self._marked[id(generator)]
        if generator.initial_seed() != _MARK:
            return True
        put_back()
        return False

    def names(self) -> List[str]:
        """Return what messages call that which another call would find in another state."""
        pairs = zip(("random", "numpy.random"), self._before, generator_states())
        moved = [f"the state of {name}: draw with torch.rand" for name, old, new in pairs if old != new]
        for value, before in self._known.values():
            if _state(value) != before:
                kind = f"{type(value).__module__.partition('._')[0]}.{type(value).__qualname__}"
                if isinstance(value, _GENERATORS):
                    moved.append(f"the state of a {kind}: draw with torch.rand")
                else:
                    moved.append(f"the place of an iterator, {kind}")
        return list(dict.fromkeys([*moved, *self._drawn]))

    def put_back(self) -> None:
        """Let random generators go on as if nothing had been drawn."""
        for put_back in reversed(self._put_back):
            put_back()


def generator_states() -> Tuple[Hashable, Hashable]:
    """Return the states of Python's and numpy's global generators, comparable."""
    return random.getstate(), _comparable(np.random.get_state())


def _read_and_write(owner: Any) -> Tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return what reads and what writes the state of a generator, or of the generator of a module."""
    if isinstance(owner, np.random.Generator):
        owner = owner.bit_generator
    if isinstance(owner, np.random.BitGenerator):
        return lambda: owner.state, lambda state: setattr(owner, "state", state)
    if owner is random or isinstance(owner, random.Random):
        return owner.getstate, owner.setstate
    return owner.get_state, owner.set_state


def _puts_back(owner: Any) -> Callable[[], Any]:
    read, write = _read_and_write(owner)
    return functools.partial(write, read())


def _state(value: Any) -> Hashable:
    """Return the state of a generator or an iterator, comparable."""
    return _comparable(_read_and_write(value)[0]()) if isinstance(value, _GENERATORS) else _place(value, 0)


def _comparable(state: Any) -> Hashable:
    if isinstance(state, dict):
        return tuple([(key, _comparable(item)) for key, item in state.items()])
    if isinstance(state, (tuple, list)):
        return tuple(map(_comparable, state))
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _place(value: Any, depth: int) -> Hashable:
    """Return how far an iterator has come, by what it shows and by what it refers to."""
    if isinstance(value, _PLAIN):
        return value
    if depth == _DEEPEST:
        return id(value)
    if isinstance(value, _COLLECTIONS):
        if len(value) > _LONGEST:
            return id(value), len(value)
        items = value.values() if isinstance(value, dict) else value
        return id(value), len(value), tuple([_place(item, depth + 1) for item in items])
    if not isinstance(value, Iterator):
        return id(value)
    if isinstance(value, GeneratorType):
        kept = inspect.getgeneratorlocals(value).values()
        return id(value), getattr(value.gi_frame, "f_lasti", None), tuple(map(id, kept))
    shown: Tuple[Any, ...] = ()
    if type(value).__module__ in ("builtins", "itertools"):
        shown = repr(value), operator.length_hint(value, 0)
    inner = gc.get_referents(value)
    if isinstance(value, itertools.cycle) and sys.version_info < (3, 12):
        # Later Pythons do not say where it is after the first round.
        inner = list(value.__reduce__()[1:])
    return id(value), shown, tuple([_place(item, depth + 1) for item in inner])


def _named_by(function: FunctionType) -> Iterator[Any]:
    """Yield what a function's code may get at by name: globals, and what of modules among them it mentions."""
    names = _names_in(function.__code__)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        if isinstance(value, ModuleType):
            yield from (vars(value).get(each) for each in names)


def _names_in(code: CodeType) -> Set[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)
