"""`PinnedStates`: random states of the host that an epoch starts from, also if handlers draw before it."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Tuple

import torch
from ignite.engine import Engine

from ignite_ipu.checkpoints.random_states import read_random_states, write_random_states
from ignite_ipu.engines.resume.accumulations import same_values
from ignite_ipu.engines.resume.position import is_between_epochs
from ignite_ipu.errors import logger


class PinnedStates:
    """The random states that a state dictionary of an engine holds, which its next epoch starts from.

    They include that of the loader's own generator.
    """

    def __init__(self) -> None:
        # The iteration at which they were taken, and whether this engine has taken them.
        self._pinned: Optional[Tuple[int, Mapping[str, Any], bool]] = None
        self._warned_of_draws = False

    def read(self, engine: Engine, pins: bool) -> Mapping[str, Any]:
        """Return the states for a state dictionary; `pins` those that are read for the next epoch."""
        iteration = engine.state.iteration
        if self._pinned is not None and self._pinned[0] == iteration and is_between_epochs(engine):
            return self._pinned[1]
        now = read_random_states(_generator(engine))
        if pins:
            self._pinned = iteration, now, True
        return now

    def load(self, iteration: int, states: Mapping[str, Any]) -> None:
        """Pin states that were loaded, for the epoch after an iteration."""
        self._pinned = iteration, states, False

    def forget(self) -> None:
        """Let the next epoch start from the present states."""
        self._pinned = None

    def restore(self, engine: Engine) -> None:
        """Start an epoch from pinned states; warn, once, of draws since this engine has taken them."""
        pinned, self._pinned = self._pinned, None
        if pinned is None or pinned[0] != engine.state.iteration or not is_between_epochs(engine):
            return
        _, states, own = pinned
        generator = _generator(engine)
        if own and not self._warned_of_draws and not same_values(states, read_random_states(generator)):
            self._warned_of_draws = True
            logger.warning(
                "The state of the trainer was taken at the end of epoch %d, and other handlers drew random numbers "
                "after that, as an evaluation's loader does. The next epoch starts from the state that was taken, so"
                " that a resumed run shuffles as this one does; Ignite's engine would go on from these draws. Attach"
                " the handler that saves the state, such as a Checkpoint, after these handlers: then both agree.",
                engine.state.epoch - 1,
            )
        write_random_states(states, generator)


def _generator(engine: Engine) -> Optional[torch.Generator]:
    """Return the own generator of an engine's data."""
    generator: Optional[torch.Generator] = getattr(engine.state.dataloader, "generator", None)
    return generator
