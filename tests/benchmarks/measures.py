"""Measurements of benchmarks, each with its aim: ratios of work taken in turns, a table, and the missed aims.

A benchmark is a module `bench_*.py` whose `measures()` yields a `Measure` for each row, in the order of the table.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Iterable, NamedTuple, TextIO, Tuple

Work = Callable[[], Any]
TOLERANCE = 0.05


class Measure(NamedTuple):
    """One row: a value that should be at most its aim, both in `unit`, which a ratio has none of."""

    name: str
    value: float
    aim: float
    unit: str = ""
    both_sides: str = ""

    @property
    def missed(self) -> bool:
        """Whether the value is more than 5 % above the aim."""
        return self.value > self.aim * (1 + TOLERANCE)

    def row(self) -> str:
        """Return the row in Markdown."""
        value, aim = (
            f"{number:.3g} {self.unit}" if self.unit else f"{number:.3f}" for number in (self.value, self.aim)
        )
        verdict = "**missed**" if self.missed else "met" if self.value <= self.aim else "met within 5 %"
        return f"| {self.name} | {self.both_sides} | {value} | {aim} | {verdict} |"


def ratio(
    name: str,
    ours: Work,
    theirs: Work,
    aim: float,
    steps: int = 1,
    pairs: int = 15,
    clock: Callable[[], float] = time.process_time,
) -> Measure:
    """Measure the median of ours / theirs over pairs that are taken in turns, so that other load hits both.

    Args:
        name: Of the row.
        ours: The measured function.
        theirs: The function to compare with.
        aim: Largest ratio to reach.
        steps: Steps that one call of either takes; the row shows milliseconds per step.
        pairs: At least 7.
        clock: Processor time of this process, all threads together; `time.perf_counter` where other processes work.
    """
    return ratio_of_fresh(name, lambda: (ours, theirs), aim, steps, 1, pairs, clock)


def ratio_of_fresh(
    name: str,
    make: Callable[[], Tuple[Work, Work]],
    aim: float,
    steps: int = 1,
    fresh: int = 7,
    pairs: int = 7,
    clock: Callable[[], float] = time.process_time,
) -> Measure:
    """Measure as `ratio` does, with functions made anew several times: the place of memory changes times, too.

    Args:
        name, aim, steps, clock: As for `ratio`.
        make: Returns the measured function, and the one to compare with.
        fresh: How often both are made.
        pairs: How often both are called each time, at least 7.
    """
    assert pairs >= 7
    times = []
    for _ in range(fresh):
        ours, theirs = make()
        ours(), theirs()  # compiles, and touches memory for the first time
        for number in range(pairs):
            taken = {work: seconds(work, clock) for work in ((ours, theirs) if number % 2 else (theirs, ours))}
            times.append((taken[ours], taken[theirs]))
    each = " / ".join(f"{1e3 * statistics.median(side) / steps:.3g}" for side in zip(*times))
    return Measure(name, statistics.median(mine / other for mine, other in times), aim, both_sides=f"{each} ms")


def seconds(work: Work, clock: Callable[[], float] = time.process_time) -> float:
    """Return the time of one call."""
    start = clock()
    work()
    return clock() - start


def report(measures: Iterable[Measure], file: TextIO) -> int:
    """Print the table as it is measured, and which aims are missed by more than 5 %; return how many."""
    print("| measure | ours / theirs | value | aim | |\n|---|---|---|---|---|", file=file, flush=True)
    found = []
    for measure in measures:
        print(measure.row(), file=file, flush=True)
        found.append(measure)
    missed = [f"{measure.name} ({measure.value / measure.aim - 1:+.0%})" for measure in found if measure.missed]
    last = f"; missed by more than 5 %: {', '.join(missed)}" if missed else ", the others within 5 %"
    print(f"\n{sum(measure.value <= measure.aim for measure in found)} of {len(found)} aims are met{last}.", file=file)
    return len(missed)
