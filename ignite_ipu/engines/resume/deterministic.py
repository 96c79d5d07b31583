"""Ignite's `DeterministicEngine` over PopTorch's loader: the same samples in the same order in every run and resume.

Ignite's own rebuilds a torch loader around a batch sampler that it can rewind. `poptorch.DataLoader` cannot be rebuilt
so, and cuts its batches itself: here the sampler under it is rewound instead.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Iterator, List, Optional

import numpy as np
from ignite.engine.deterministic import DeterministicEngine, _set_rng_states

__all__ = ["DeterministicRuns", "RewindableSampler"]


class RewindableSampler:
    """A sampler that can leave out the indices that were used before a resume."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._skip = 0
        self._drawn: Optional[List[Any]] = None

    def rewind(self, skip: int) -> None:
        """Leave out this many indices of the epoch that starts next."""
        self._skip = skip

    def draw(self) -> None:
        """Draw the indices of the epoch that starts next, unless it has started."""
        if self._skip:
            self._drawn = list(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        indices = list(self._sampler) if self._drawn is None else self._drawn
        skip, self._skip, self._drawn = self._skip, 0, None
        yield from indices[skip:]

    def __len__(self) -> int:
        return len(self._sampler)


class DeterministicRuns(DeterministicEngine):
    """Differences from Ignite's deterministic engine: how data is set up, and where in it a resumed run starts.

    Its state dictionary holds the same random states, as plain data that a checkpoint can be read back with.
    """

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return Ignite's state dictionary, numpy's numbers in it as a list."""
        state: OrderedDict[str, Any] = super().state_dict()
        python, pytorch, numpy = state["rng_states"]
        state["rng_states"] = [python, pytorch, tuple(_as_list(each) for each in numpy)]
        return state

    def _setup_engine(self) -> None:
        state: Any = self.state
        data = state.dataloader
        if data is None:
            raise ValueError("A deterministic engine needs data: data=None leaves it nothing to repeat.")
        self._dataloader_len = self._get_data_length(data)
        iteration = state.iteration
        self._dataloader_iter = self._from_iteration(iteration)
        self._init_iter = iteration % state.epoch_length if state.epoch_length else iteration
        states = getattr(state, "rng_states", None)
        if states is not None and self._dataloader_len and iteration % self._dataloader_len:
            _set_rng_states(states)
            state.rng_states = None

    def _begin_pass(self, over: bool) -> None:
        """Prepare what the seed does not, before the host is seeded for a pass over the data."""

    def _from_iteration(self, iteration: int) -> Iterator[Any]:
        data: Any = self.state.dataloader
        sampler = getattr(data, "sampler", None)
        if not isinstance(sampler, RewindableSampler):
            # Without indices there is nothing to rewind: batches are fetched and thrown away.
            return super()._from_iteration(iteration)
        self._begin_pass(iteration % len(data) == 0)
        self._setup_seed()
        sampler.rewind(iteration % len(data) * data.combinedBatchSize)
        batches: Iterator[Any] = iter(data)
        # Now, while the host is seeded: afterwards a resume sets the random state of where it was interrupted.
        sampler.draw()
        return batches


def _as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
