"""What a forward takes from the host in every call: a trace takes it once, and a program keeps it.

Random numbers of Python, of numpy and of a `torch.Generator`, the next element of an iterator, the time of day.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import operator
import os
import random
import sys
import time
from collections.abc import Iterator
from types import FrameType, GeneratorType
from typing import Any, Callable, Dict, Hashable, List, Optional, Set, Tuple

import numpy as np
import torch

from ignite_ipu.function_contexts import FunctionGuard
from ignite_ipu.installed import is_users_file

__all__ = ["Draws", "generator_states"]

_TorchGenerator: Any = torch._C.Generator
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)
_PLAIN = (int, float, str, bytes, type(None))
_COLLECTIONS = (list, tuple, dict)
_DEEPEST = 4
_LONGEST = 64
# What says another thing in every call, of which `_DATES` are the methods of classes.
_SOURCES: Set[Any] = {os.urandom, time.time, time.time_ns, time.monotonic, time.perf_counter, time.perf_counter_ns}
_DATES = frozenset(["now", "utcnow", "today"])
_TRACERS = frozenset(["ignite_ipu", "poptorch"])


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
        self._seeded: Set[int] = set()
        # In order, each once.
        self._drawn: Dict[str, None] = {}

    def look_at(self, value: Any) -> bool:
        """Note the state of a random generator or an iterator; returns whether the value is one."""
        kind = type(value)
        if not issubclass(kind, (*_GENERATORS, Iterator)):
            return False
        # The generator of the operating system has no state.
        if id(value) not in self._known and not issubclass(kind, random.SystemRandom):
            self._known[id(value)] = (value, _state(value))
            if issubclass(kind, _GENERATORS):
                self._put_back.append(_puts_back(value))
        return True

    def note_call(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take notice, as a function for `sys.setprofile`, of what seeds generators or asks for the time."""
        if event != "c_call":
            return
        owner, name = getattr(argument, "__self__", None), getattr(argument, "__name__", "")
        if isinstance(owner, _TorchGenerator):
            if name == "manual_seed" and owner is torch.default_generator and not _is_tracing(frame):
                self._drawn["the seed of torch: a device draws from a stream of its own"] = None
            elif name in ("manual_seed", "set_state"):
                self._seeded.add(id(owner))
        elif name == "seed" and isinstance(owner, random.Random):
            # Without a seed it takes random bytes.
            self.asked_outside |= frame.f_locals.get("a") is None
        elif argument in _SOURCES or (name in _DATES and getattr(owner, "__module__", "") == "datetime"):
            self.asked_outside |= not _is_tracing(frame)

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Note a generator that PyTorch draws from, unless the call has seeded it itself."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, _TorchGenerator) and id(value) not in self._seeded:
                self._put_back.append(_puts_back(value))
                self._drawn["the state of a torch.Generator: draw without generator="] = None

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


def _is_tracing(frame: Optional[FrameType]) -> bool:
    """Tell whether a frame is at work for this package or for PopTorch, not for the code of a forward."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] in _TRACERS:
            return True
        if module == "torch.nn.modules.module" or is_users_file(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return False
