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

__all__ = [
    "GENERATORS",
    "SEED",
    "draws_put_back",
    "generator_states",
    "moved",
    "name_of_iterator",
    "progress",
    "state_of",
]

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
    """Return the state of a generator, of that of a module, or how far an iterator has come, comparable."""
    if not _is_generator(value):
        return progress(value)
    if isinstance(value, random.SystemRandom):
        return None  # that of the operating system has none
    source = value.bit_generator if isinstance(value, np.random.Generator) else value
    if isinstance(source, np.random.BitGenerator):
        return pickle.dumps(source.state)
    return pickle.dumps(source.getstate() if hasattr(source, "getstate") else source.get_state())


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


def progress(iterator: Any) -> Hashable:
    """Return how far an iterator has come, as far as it shows that."""
    if isinstance(iterator, GeneratorType):
        kept = inspect.getgeneratorlocals(iterator).values()
        return id(iterator), getattr(iterator.gi_frame, "f_lasti", None), tuple(map(id, kept))
    return id(iterator), repr(iterator), operator.length_hint(iterator, 0)


def _is_generator(value: Any) -> bool:
    return value is random or value is np.random or isinstance(value, GENERATORS)


def _name(value: Any) -> str:
    if value is random or value is np.random:
        return str(value.__name__)
    kind = type(value)
    return f"a {kind.__module__.partition('._')[0]}.{kind.__qualname__}"
