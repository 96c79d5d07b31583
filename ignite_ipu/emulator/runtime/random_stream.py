"""The device's random stream, which leaves the host's alone."""

from __future__ import annotations

import contextlib
from typing import Iterator, List, Optional, Sequence

import torch

from ignite_ipu.emulator.trace.isolation import Turn

# PyTorch has one generator for the process: programs that draw from it run one after the other.
_TURN = Turn()


class RandomStream:
    """Random numbers of one program: the host's stream is as it was after every call.

    Args:
        seed: Where the stream starts.
        alike: Whether every call draws if the first one does, and none if it does not.
    """

    def __init__(self, seed: int, alike: bool) -> None:
        self.seed = seed
        self._alike = alike
        self._state = _start(seed)
        self.used: Optional[bool] = None  # unknown until the first call, and for good where calls differ

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        if self.used is False:
            yield
            return
        with _TURN.lock:
            host = torch.random.get_rng_state()
            torch.random.set_rng_state(self._state)
            try:
                yield
            finally:
                state = torch.random.get_rng_state()
                torch.random.set_rng_state(host)
        if self.used is None and self._alike:
            self.used = not torch.equal(state, self._state)
        self._state = state

    def read(self) -> List[int]:
        """Return the seed followed by the state, as integers."""
        return [self.seed, *self._state.tolist()]

    def write(self, values: Sequence[int]) -> None:
        """Continue from what `read` returned."""
        self.seed, *state = values
        self._state = torch.tensor(state, dtype=torch.uint8) if state else _start(self.seed)
        self.used = None


def _start(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()
