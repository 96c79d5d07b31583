"""Measurements of benchmarks: ratios of functions that are called in turns, a table, and the missed aims.

A benchmark is a module `bench_*.py` whose `measures()` yields a `Measure` for each row, in the order of the table.

Some aims are out of reach. The row then has a limit: the same ratio for a function that does the unavoidable work and
nothing else. It is measured in the same turns as the row.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, TextIO

Work = Callable[[], Any]
TOLERANCE = 0.05
SECONDS = 6.0
"""Seconds after which a row takes no more pairs of measurements."""
PAIRS = 7
"""Number of pairs of measurements that a row has at least, unless fewer are asked for."""


class Measure(NamedTuple):
    """One row of the table.

    Attributes:
        name: The measured ratio or time.
        value: Today's value.
        aim: Largest value to reach.
        unit: Unit of the numbers; a ratio has none.
        both_sides: The two sides of a ratio.
        limit: Smallest value that is possible, if it is measured.
    """

    name: str
    value: float
    aim: float
    unit: str = ""
    both_sides: str = ""
    limit: Optional[float] = None

    @property
    def reachable(self) -> float:
        """The aim, or the limit if that is larger."""
        return self.aim if self.limit is None else max(self.aim, self.limit)

    @property
    def missed(self) -> bool:
        """Whether the value is more than 5 % above the aim and above the limit."""
        return self.value > self.reachable * (1 + TOLERANCE)

    @property
    def verdict(self) -> str:
        if self.missed:
            return "**missed**"
        if self.value <= self.aim:
            return "met"
        return "met within 5 %" if self.value <= self.aim * (1 + TOLERANCE) else "at the limit"

    def row(self) -> str:
        """Return the row in Markdown."""
        limit = "" if self.limit is None else self._number(self.limit)
        numbers = f"{limit} | {self._number(self.aim)} | {self._number(self.value)}"
        return f"| {self.name} | {numbers} | {self.both_sides} | {self.verdict} |"

    def _number(self, number: float) -> str:
        return f"{number:.3g} {self.unit}" if self.unit else f"{number:.3f}"


def ratio(
    name: str,
    ours: Work,
    theirs: Work,
    aim: float,
    steps: int = 1,
    pairs: int = 15,
    clock: Callable[[], float] = time.process_time,
    least: Optional[Work] = None,
) -> Measure:
    """Measure the median of ours / theirs over pairs that are taken in turns, so that other load affects both.

    Args:
        name: Of the row.
        ours: The measured function.
        theirs: The function to compare with.
        aim: Largest ratio to reach.
        steps: Steps that one call of either takes; the row shows milliseconds per step.
        pairs: Number of pairs, if there is time for more than `PAIRS`.
        clock: Processor time of this process, all threads together; `time.perf_counter` where other processes work.
        least: Does the unavoidable part of `ours`; its ratio is the limit.
    """
    works = (ours, theirs) if least is None else (ours, theirs, least)
    return ratio_of_fresh(name, lambda: works, aim, steps, 1, pairs, clock)


def ratio_of_fresh(
    name: str,
    make: Callable[[], Sequence[Work]],
    aim: float,
    steps: int = 1,
    fresh: int = 7,
    pairs: int = PAIRS,
    clock: Callable[[], float] = time.process_time,
) -> Measure:
    """Measure as `ratio` does, with functions made anew several times: the place of memory changes times, too.

    Args:
        name, aim, steps, clock: As for `ratio`.
        make: Returns the measured function, the one to compare with, and the one for the limit if there is one.
        fresh: Number of times that they are made, if there is time or there are too few pairs.
        pairs: Number of calls of each of them every time.
    """
    times: List[List[float]] = []
    end = time.perf_counter() + SECONDS
    for _ in range(fresh):
        if len(times) >= PAIRS and time.perf_counter() > end:
            break
        works = make()
        for work in works:
            work()  # compiles, and touches memory for the first time
        for number in range(pairs):
            if number >= PAIRS and time.perf_counter() > end:
                break
            found = {work: seconds(work, clock) for work in (works if number % 2 else reversed(works))}
            times.append([found[work] for work in works])
    each = " / ".join(f"{1e3 * statistics.median(side) / steps:.3g}" for side in list(zip(*times))[:2])
    value, *limits = [
        statistics.median(row[place] / row[1] for row in times) for place in range(len(times[0])) if place != 1
    ]
    return Measure(name, value, aim, "", f"{each} ms", limits[0] if limits else None)


def seconds(work: Work, clock: Callable[[], float] = time.process_time) -> float:
    """Return the time of one call."""
    start = clock()
    work()
    return clock() - start


def best_of(repeats: int, call: Work) -> float:
    """Return the processor seconds of the fastest of several calls."""
    return min(seconds(call) for _ in range(repeats))


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of a straight line through the logarithms."""
    x, y = ([math.log(each) for each in side] for side in (sizes, values))
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y)) / sum((a - middle) ** 2 for a in x)


def report(measures: Iterable[Measure], file: TextIO) -> int:
    """Print the table as it is measured, and which aims are missed by more than 5 %; return how many."""
    head = "| measure | limit | aim | today | ours / theirs | |\n|---|---|---|---|---|---|"
    print(head, file=file, flush=True)
    found = []
    for measure in measures:
        print(measure.row(), file=file, flush=True)
        found.append(measure)
    missed = [f"{measure.name} ({measure.value / measure.reachable - 1:+.0%})" for measure in found if measure.missed]
    last = f"; missed by more than 5 %: {', '.join(missed)}" if missed else ", the others within 5 % or at the limit"
    print(f"\n{sum(measure.value <= measure.aim for measure in found)} of {len(found)} aims are met{last}.", file=file)
    return len(missed)
