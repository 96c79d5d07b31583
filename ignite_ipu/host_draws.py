"""Random numbers that a forward draws from Python or numpy: a trace draws them once, and a program keeps them."""

from __future__ import annotations

import random
from typing import Any, Callable, List, Tuple, TypeVar

import numpy as np

__all__ = ["drawn_by", "drawn_since", "generator_states"]

T = TypeVar("T")


def generator_states() -> Tuple[Any, Any]:
    """Return the states of Python's and numpy's global generators, comparable."""
    kind, keys, *others = np.random.get_state()
    return random.getstate(), (kind, np.asarray(keys).tobytes(), *others)


def drawn_since(before: Tuple[Any, Any]) -> List[str]:
    """Return what messages call the generators that have been drawn from since their states were `before`."""
    pairs = zip(("random", "numpy.random"), before, generator_states())
    return [f"the state of {name}: draw with torch.rand" for name, old, new in pairs if old != new]


def drawn_by(call: Callable[[], T]) -> Tuple[T, List[str]]:
    """Return what `call` returns, and the generators that it has drawn from, which are put back."""
    before, python, numpy = generator_states(), random.getstate(), np.random.get_state()
    try:
        return call(), drawn_since(before)
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
