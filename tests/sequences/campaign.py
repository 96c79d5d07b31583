"""Plays many sequences, in one process or in several, and counts their outcomes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import gc
import logging
import multiprocessing
import time
import warnings
from collections import Counter
from typing import Counter as Counts
from typing import Iterator, List, Tuple

import torch

from tests.sequences.playing import PROGRAM_WORLDS, outcome_of, random_sequence, shrunk

# After so many sequences the libraries have imported their modules, and made their tables.
_WARM = 20
_SIZE = 1000


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Sequences of consecutive seeds, and what is done with their outcomes.

    Attributes:
        first, count: The first seed, and how many there are.
        update: The kind of the updates.
        spread: Whether the models are spread over two IPUs.
        shrinks: Whether a sequence that differs or crashes is shown as short as possible.
        shows_refusals: Whether a sequence is shown for each reason of a refusal.
        worlds: The names of the worlds that they are drawn from.
    """

    first: int
    count: int
    update: str = "auto"
    spread: bool = False
    shrinks: bool = False
    shows_refusals: bool = False
    worlds: Tuple[str, ...] = PROGRAM_WORLDS

    def parts(self) -> List[Chunk]:
        """Return the same sequences in chunks of a thousand."""
        end = self.first + self.count
        firsts = range(self.first, end, _SIZE)
        return [dataclasses.replace(self, first=first, count=min(_SIZE, end - first)) for first in firsts]


@dataclasses.dataclass
class Played:
    """How many sequences had each outcome and each reason of a refusal, and their seconds of processor time."""

    kinds: Counts[str] = dataclasses.field(
        default_factory=lambda: Counter({"same": 0, "refused": 0, "different": 0, "crash": 0})
    )
    reasons: Counts[str] = dataclasses.field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, other: Played) -> None:
        self.kinds.update(other.kinds)
        self.reasons.update(other.reasons)
        self.seconds += other.seconds

    @property
    def shows_fault(self) -> bool:
        """True if some have other numbers than PyTorch, or have crashed."""
        return bool(self.kinds["different"] or self.kinds["crash"])


def play(chunk: Chunk, processes: int = 1) -> Played:
    """Play sequences in a number of processes, and print those that differ, crash, or are to be shown."""
    played = Played()
    if processes == 1:
        for part in chunk.parts():
            played.add(_play_here(part))
        return played
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context, initializer=_begin) as pool:
        for other in pool.map(_play_here, chunk.parts()):
            played.add(other)
    return played


def _begin() -> None:
    torch.set_num_threads(1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


@_quiet()
def _play_here(chunk: Chunk) -> Played:
    played, start = Played(), time.process_time()
    for number, seed in enumerate(range(chunk.first, chunk.first + chunk.count)):
        if number == _WARM:
            # Neither the collector nor a search of the process for tensors goes through these objects each time.
            gc.collect()
            gc.freeze()
        sequence = random_sequence(seed, chunk.worlds)
        outcome = outcome_of(sequence, chunk.update, chunk.spread)
        played.kinds[outcome.kind] += 1
        shows = outcome.kind in ("different", "crash")
        if outcome.kind == "refused":
            played.reasons[outcome.detail] += 1
            shows = chunk.shows_refusals and played.reasons[outcome.detail] == 1
        elif shows and chunk.shrinks:
            sequence = shrunk(sequence, chunk.update, outcome)
            outcome = outcome_of(sequence, chunk.update, chunk.spread)
        if shows:
            print(f"{seed} {outcome.kind}: {outcome.detail}\n    {sequence}", flush=True)
    played.seconds = time.process_time() - start
    return played
