"""Random generators and iterators of the host: a trace draws from them once, and a program keeps the drawn values."""

from __future__ import annotations

import contextlib
import inspect
import operator
import pickle
import random
from types import GeneratorType
from typing import Any, Hashable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch

GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)
"""The classes of random generators, but for torch's."""

GLOBAL: Tuple[Any, Any] = random.random.__self__, np.random.rand.__self__  # type: ignore[attr-defined]
"""The generators that the functions of the modules `random` and `numpy.random` draw from."""

SEED = 0x1691_7E19_0
"""A seed for torch that no other code chooses: another one afterwards shows that a call has seeded torch."""


@contextlib.contextmanager
def draws_put_back(*generators: Optional[torch.Generator]) -> Iterator[None]:
    """Let Python's, numpy's and torch's own generators, and these, go on after the `with` block as before it."""
    own = host_random_state()
    others = [(each, each.get_state()) for each in generators if each is not None]
    try:
        yield
    finally:
        draw_from(own)
        for generator, state in others:
            generator.set_state(state)


HostRandomState = Tuple[Any, Any, torch.Tensor]
"""The states of Python's, numpy's and torch's own generators."""


def host_random_state() -> HostRandomState:
    """Return the state that random numbers of the host are drawn from, for `draw_from`."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def draw_from(state: HostRandomState) -> None:
    """Let random numbers of the host be drawn from an earlier state."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def generator_states() -> Tuple[Hashable, Hashable]:
    """Return the states of Python's and numpy's global generators, comparable."""
    return state_of(GLOBAL[0]), state_of(GLOBAL[1])


def state_of(value: Any) -> Hashable:
    """Return the state of a generator, or how far an iterator has come, if it shows that."""
    if isinstance(value, random.SystemRandom):
        return None  # that of the operating system has none
    if type(value) is random.Random:
        return value.getstate()
    if type(value) is np.random.RandomState:
        state: Any = value.get_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            return pickle.dumps(state)
        return state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]
    if isinstance(value, GENERATORS):
        source: Any = value.bit_generator if isinstance(value, np.random.Generator) else value
        states = [getattr(source, name)() for name in ("getstate", "get_state") if hasattr(source, name)]
        return pickle.dumps(states or source.state)
    if isinstance(value, GeneratorType):
        kept = inspect.getgeneratorlocals(value).values()
        return id(value), getattr(value.gi_frame, "f_lasti", None), tuple(map(id, kept))
    return id(value), repr(value), operator.length_hint(value, 0)


def moved(values: Sequence[Any], before: Sequence[Hashable]) -> List[str]:
    """Return the names in messages of generators and iterators whose states have changed."""
    return [name_of(value) for value, state in zip(values, before) if state_of(value) != state]


def name_of(value: Any) -> str:
    """Return the description in messages of a generator's state, or an iterator's place."""
    kind = f"{type(value).__module__.partition('._')[0]}.{type(value).__qualname__}"
    if not isinstance(value, GENERATORS):
        return f"the place of an iterator, {kind}"
    own = "random" if value is GLOBAL[0] else "numpy.random" if value is GLOBAL[1] else f"a {kind}"
    return f"the state of {own}: draw with torch.rand"
