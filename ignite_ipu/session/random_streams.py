"""Random streams of programs: read, continued from a state, and given a start."""

from __future__ import annotations

from typing import List, Optional

import torch

from ignite_ipu.session.program import ModelProgram, random_state_of

_SEEDS = 2**31


def read_stream(program: ModelProgram) -> Optional[List[int]]:
    """Return a random state; None before the program was compiled, or if it has no seed and never ran."""
    return program.stream if program.compiled is None else program.copied(random_state_of)


def continue_stream(program: ModelProgram, state: List[int]) -> None:
    """Continue a random stream with the next call of a program."""
    compiled = program.compiled
    if compiled is None:
        program.stream = list(state)
    else:
        compiled.executor.rng_state = list(state)


def started_stream(program: ModelProgram) -> Optional[List[int]]:
    """Return a random state, after giving it a start that can be restored if it has none and PopTorch reports none."""
    state = read_stream(program)
    if state is None:
        options = program.options
        seeded = options.exists("random_seed")
        continue_stream(program, [int(options.random_seed) if seeded else torch.initial_seed() % _SEEDS])
        state = read_stream(program)
    return state
