"""The random state that a worker process begins with, and its update when the caller seeds again.

Synchronous iteration draws its order from the caller's generator. A worker loads ahead, so it cannot. It begins with a
copy of the caller's random state instead, which gives the same first epoch as synchronous iteration, and goes on from
there. If the caller seeds torch (or the loader's own generator) again before an epoch, the worker receives that state
and begins the epoch anew. So `torch.manual_seed(s)` before iterating has its usual effect.
"""

from __future__ import annotations

import pickle
import random
import sys
from dataclasses import dataclass
from typing import Any, Iterable, Optional

import torch


@dataclass(frozen=True)
class RandomState:
    """The state of every generator a data set commonly draws from: torch's, Python's, and NumPy's if it is in use."""

    torch_state: torch.Tensor
    python_state: Any
    numpy_state: Any

    @classmethod
    def capture(cls) -> RandomState:
        """Return the present state of this process."""
        numpy = sys.modules.get("numpy")
        return cls(torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state())

    def restore(self) -> None:
        """Make this the state of this process."""
        torch.set_rng_state(self.torch_state)
        random.setstate(self.python_state)
        if self.numpy_state is not None:
            import numpy as np

            np.random.set_state(self.numpy_state)


class CallerSeed:
    """Watches the generator that a loader's order comes from for being seeded between two epochs.

    Only a torch `DataLoader` draws from one in a known way, and one that `has_own_order` from none of the caller's.
    """

    def __init__(self, dataset: Iterable[Any], has_own_order: bool = False) -> None:
        self._watches = isinstance(dataset, torch.utils.data.DataLoader) and not has_own_order
        own: Optional[torch.Generator] = getattr(dataset, "generator", None) if self._watches else None
        self._is_own = own is not None
        self._generator = torch.default_generator if own is None else own
        self._seed = self._generator.initial_seed()
        self._state = self._generator.get_state()

    def new_state(self) -> bytes:
        """Return the state to begin the next epoch with, or nothing if the generator was not seeded anew.

        One number is drawn from the generator, as torch does for every iterator of a loader. This also distinguishes a
        generator seeded twice with the same number from an unchanged one.
        """
        if not self._watches:
            return b""
        state, seed = self._generator.get_state(), self._generator.initial_seed()
        seeded = not torch.equal(state, self._state) and (
            self._is_own or seed != self._seed or torch.equal(state, torch.Generator().manual_seed(seed).get_state())
        )
        torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        self._seed, self._state = seed, self._generator.get_state()
        return pickle.dumps(state) if seeded else b""


def adopt_state(dataset: Iterable[Any], body: bytes) -> None:
    """Give a state made by `CallerSeed` to the generator that `dataset` draws from in this process."""
    own: Optional[torch.Generator] = getattr(dataset, "generator", None)
    (torch.default_generator if own is None else own).set_state(pickle.loads(body))
