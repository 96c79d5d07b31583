"""`DeterministicIPUTrainer`: a trainer that seeds the host at every start of the data."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
from ignite.engine.deterministic import DeterministicEngine

from ignite_ipu.engines.call_loader import CallLoader
from ignite_ipu.engines.trainer import IPUTrainer
from ignite_ipu.torch_names.engines import set_random_states


class DeterministicIPUTrainer(IPUTrainer, DeterministicEngine):
    """The engine that `create_ipu_trainer(..., deterministic=True)` returns; see Ignite's `DeterministicEngine`.

    Data is set up in another way than there, and a resumed run starts where it was in it. The state dictionary holds
    the same random states, as plain data that a checkpoint can be read back with.
    """

    _seed: Optional[int] = None

    def _states(self, device_random_state: Optional[List[int]]) -> Tuple[OrderedDict[str, Any], Dict[str, Any]]:
        """Return Ignite's state dictionary, numpy's numbers in it as a list, and the seed that the run began with."""
        state, own = super()._states(device_random_state)
        own["seed"] = getattr(self.state, "seed", None) if self._seed is None else self._seed
        loaded = getattr(self.state, "rng_states", None)
        python, pytorch, numpy = state["rng_states"] if loaded is None else loaded
        plain = tuple(each.tolist() if isinstance(each, np.ndarray) else each for each in numpy)
        state["rng_states"] = [python, pytorch, plain]
        return state, own

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a result of `state_dict`, or the state of an ordinary Ignite engine."""
        super().load_state_dict(state_dict)
        self._seed = state_dict.get("ipu", {}).get("seed")

    def _init_run(self) -> None:
        # Ignite draws a seed from the host's random numbers, of which a resumed run may have drawn others before.
        super()._init_run()
        seed, self._seed = self._seed, None
        if seed is not None and self.resumes:
            self.state.seed = seed

    def _setup_engine(self) -> None:
        state: Any = self.state
        data = state.dataloader
        if data is None:
            raise ValueError("A deterministic engine needs data: data=None leaves it nothing to repeat.")
        self._dataloader_len = self._get_data_length(data)
        iteration = state.iteration
        self._dataloader_iter = self._from_iteration(iteration)
        self._init_iter = iteration % state.epoch_length if state.epoch_length else iteration
        states, state.rng_states = getattr(state, "rng_states", None), None
        if states is not None and self._dataloader_len and iteration % self._dataloader_len:
            set_random_states(states)
        self._position.forget()  # of data that cannot be rewound, too

    def _from_iteration(self, iteration: int) -> Iterator[Any]:
        data: Any = self.state.dataloader
        sampler = data.source.rewindable if isinstance(data, CallLoader) else None
        if sampler is None:
            # Without indices there is nothing to rewind: batches are fetched and thrown away.
            return super()._from_iteration(iteration)
        self._position.rewind_generator(data, over=iteration % len(data) == 0)
        self._setup_seed()
        sampler.rewind(iteration % len(data) * data.micro_batches)
        batches: Iterator[Any] = iter(data)
        # Now, while the host is seeded: afterwards a resume sets the random state of where it was interrupted.
        sampler.draw()
        return batches

    def _setup_dataloader_iter(self) -> None:
        self._position.note_generator(self.state.dataloader)
        DeterministicEngine._setup_dataloader_iter(self)

    def _restore_pinned(self) -> None:
        # The engine seeds the host itself, at every start of the data.
        self._pins.forget()
