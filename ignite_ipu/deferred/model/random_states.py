"""Random states of the programs that train parameters: of all of a model, or of all of an optimizer."""

from __future__ import annotations

from typing import List, Optional, Sequence

import torch

from ignite_ipu.deferred.model.model import loops_of

__all__ = ["random_state_of", "set_random_state_of"]


def random_state_of(parameters: Sequence[torch.Tensor]) -> Optional[List[int]]:
    """Return the random state of the program that trains parameters, None if there is none yet."""
    ids = list(map(id, parameters))
    for loop in loops_of(parameters):
        running = [
            programs for programs in loop.updates.programs if programs.prepared and programs.stream.may_serve(ids)
        ]
        state = running[0].stream.read() if running else loop.random_streams.of(ids)
        if state is not None:
            return state
    return None


def set_random_state_of(parameters: Sequence[torch.Tensor], state: Optional[List[int]]) -> None:
    """Have the programs that train parameters go on from a random state, those that are yet to be made, too.

    With None these start anew.
    """
    ids = list(map(id, parameters))
    for loop in loops_of(parameters):
        loop.random_streams.note(ids, state)
        for programs in loop.updates.programs:
            if programs.stream.may_serve(ids):
                programs.stream.follow(state)
