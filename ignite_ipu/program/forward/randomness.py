"""Random generators and iterators of the host: a trace takes from them once, and a program keeps what it took."""

from __future__ import annotations

import contextlib
import inspect
import operator
import pickle
import random
from types import GeneratorType
from typing import Any, Hashable, Iterator, List, Sequence, Tuple

import numpy as np
import torch

__all__ = ["GENERATORS", "SEED", "draws_put_back", "generator_states", "moved", "name_of_iterator", "state_of"]

GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)
"""The classes of random generators, but for torch's."""

SEED = 0x1691_7E19_0
"""A seed for torch that nobody else chooses, by which to tell whether a call has seeded it."""


@contextlib.contextmanager
def draws_put_back() -> Iterator[None]:
    """Let Python's, numpy's and torch's own generators go on after the `with` block as if nothing had been drawn."""
    python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(of_numpy)


def generator_states() -> Tuple[Hashable, Hashable]:
    """Return the states of Python's and numpy's global generators, comparable."""
    return state_of(random), state_of(np.random)


def state_of(value: Any) -> Hashable:
    """Return the state of a generator, of that of a module, or how far an iterator has come, if it shows that."""
    if isinstance(value, random.SystemRandom):
        return None  # that of the operating system has none
    if _is_generator(value):
        source = value.bit_generator if isinstance(value, np.random.Generator) else value
        states = [getattr(source, name)() for name in ("getstate", "get_state") if hasattr(source, name)]
        return pickle.dumps(states or source.state)
    if isinstance(value, GeneratorType):
        kept = inspect.getgeneratorlocals(value).values()
        return id(value), getattr(value.gi_frame, "f_lasti", None), tuple(map(id, kept))
    return id(value), repr(value), operator.length_hint(value, 0)


def moved(values: Sequence[Any], before: Sequence[Hashable]) -> List[str]:
    """Return what messages call those generators and iterators whose states are others than before."""
    return [
        f"the state of {_name(value)}: draw with torch.rand" if _is_generator(value) else name_of_iterator(value)
        for value, state in zip(values, before)
        if state_of(value) != state
    ]


def name_of_iterator(value: Any) -> str:
    """Return what messages call the place of an iterator."""
    return f"the place of an iterator, {_name(value)[2:]}"


def _is_generator(value: Any) -> bool:
    return value is random or value is np.random or isinstance(value, GENERATORS)


def _name(value: Any) -> str:
    if value is random or value is np.random:
        return str(value.__name__)
    return f"a {type(value).__module__.partition('._')[0]}.{type(value).__qualname__}"
