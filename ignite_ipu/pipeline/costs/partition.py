"""The best way to cut a chain of layers into consecutive stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from ignite_ipu.errors import PlanError

Matrix = npt.NDArray[np.float64]
"""Entry [i, j] speaks of a stage that holds the layers i up to, not including, j."""

Index = Tuple[Any, Any]
"""Choice of entries of such a matrix: numbers or arrays of i and of j."""

StageTimes = Callable[[Index], Callable[[int, Any], Matrix]]
"""Gives for entries, and then for a stage number and some of their rows, the time of that stage there.

It is infinite where the stage is not allowed.
"""

_ALL: Any = ...


@dataclass(frozen=True)
class Partition:
    """A chain cut into stages.

    Args:
        bounds: Where stages begin, and the end: stage s holds the layers `bounds[s]` up to `bounds[s + 1]`.
        slowest: Time of the slowest stage.
        moved: Sum over the cuts of the moved bytes, in the unit of `cut_bytes`.
    """

    bounds: Tuple[int, ...]
    slowest: float
    moved: float

    @property
    def sizes(self) -> Tuple[int, ...]:
        """Layers per stage."""
        return tuple(end - begin for begin, end in zip(self.bounds, self.bounds[1:]))


def partition(
    stage_times: StageTimes,
    layers: int,
    stages: int,
    cut_bytes: Optional[Sequence[float]] = None,
    longer: Callable[[int], float] = lambda longest: -np.inf,
) -> Optional[Partition]:
    """Cut `layers` layers into exactly `stages` non-empty stages so that the slowest is fastest, or return None.

    Of all cuttings with that slowest stage it takes one that moves the least over its cuts. Dynamic programming over
    (stage, last layer) tries every cutting into stages of little more than the average number of layers. The limit
    becomes twice the average, and doubles, while a longer stage could be as fast. The time is O(layers^2 / stages), if
    stages are much alike and `longer` is given, and O(layers^2) without it.

    Args:
        stage_times: The time of stages; no stage is faster than the last with the same layers.
        cut_bytes: Bytes that a cut after each layer but the last moves; 0 by default.
        longer: Returns a time that no stage of more than so many layers is below, at any place. It saves a look at all
            of these stages.
    """
    if stages < 1 or stages > layers:
        raise PlanError(
            f"{layers} layers cannot fill {stages} stages. Use between 1 and {layers}, or measure with a finer "
            "granularity."
        )
    moved = np.zeros(layers + 1)
    if cut_bytes is not None:
        moved[1:layers] = cut_bytes
    fastest: Optional[Matrix] = None
    average = -(-layers // stages)
    longest = min(average + -(-average // 4), layers)
    while True:
        found = _with_stages_up_to(longest, stage_times, layers, stages, moved)
        slowest = np.inf if found is None else found.slowest
        if longest == layers:
            return found
        least = longer(longest)
        if longest >= 2 * average and least <= slowest and not np.isposinf(least):
            if fastest is None:
                places = np.arange(layers + 1)
                fastest = stage_times((places[:, None], places))(stages - 1, _ALL)
            least = min(row[begin + longest + 1 :].min() for begin, row in enumerate(fastest[: layers - longest]))
        if least > slowest or np.isposinf(least):
            return found
        longest = min(2 * longest if longest >= 2 * average else 2 * average, layers)


def _with_stages_up_to(
    longest: int, stage_times: StageTimes, layers: int, stages: int, moved: npt.NDArray[np.float64]
) -> Optional[Partition]:
    """Return the best cutting into stages of up to `longest` layers."""
    # The first stage begins with the first layer, and the last one ends with the last: few places for either.
    few = np.arange(1, longest + 1)
    ahead, last = stage_times((0, few))(0, _ALL), layers - few[::-1]
    if stages == 1:
        return _of_one_stage(float(ahead[-1]), layers) if longest == layers else None
    behind = stage_times((last, layers))(stages - 1, _ALL)
    between = []
    if stages > 2:
        places = [_ends(stage, longest, layers, stages) for stage in range(1, stages - 1)]
        least, most = places[0].start, places[-1].stop
        ends = np.arange(least, most)[:, None]
        begins = ends - few[::-1]
        exist = begins >= 0
        begins = np.maximum(begins, 0)
        time_of = stage_times((begins, ends))
        for stage, place in enumerate(places, 1):
            rows = slice(place.start - least, place.stop - least)
            between.append((place, begins[rows], np.where(exist[rows], time_of(stage, rows), np.inf)))
    reach = np.full(layers + 1, np.inf)
    reach[1 : longest + 1] = ahead
    for place, froms, time in between:
        before, reach = reach, np.full(layers + 1, np.inf)
        reach[place] = np.maximum(before[froms], time).min(axis=1)
    slowest = float(np.maximum(reach[last], behind).min())
    if not np.isfinite(slowest):
        return None
    total = np.full(layers + 1, np.inf)
    total[1 : longest + 1] = np.where(ahead <= slowest, 0.0, np.inf)
    choices = []
    for place, froms, time in between:
        sums = np.where(time <= slowest, (total + moved)[froms], np.inf)
        best = sums.argmin(axis=1)[:, None]
        choices.append((place.start, np.take_along_axis(froms, best, 1)[:, 0]))
        total = np.full(layers + 1, np.inf)
        total[place] = np.take_along_axis(sums, best, 1)[:, 0]
    sums = np.where(behind <= slowest, (total + moved)[last], np.inf)
    bounds = [layers, int(last[sums.argmin()])]
    for first, choice in reversed(choices):
        bounds.append(int(choice[bounds[-1] - first]))
    return Partition((0, *reversed(bounds)), slowest, float(sums.min()))


def _ends(stage: int, longest: int, layers: int, stages: int) -> slice:
    """Return the places where a stage may end, if the stages reach over all layers with 1 to `longest` layers each."""
    ahead, behind = stage + 1, stages - 1 - stage
    return slice(max(ahead, layers - behind * longest), min(ahead * longest, layers - behind) + 1)


def _of_one_stage(slowest: float, layers: int) -> Optional[Partition]:
    return Partition((0, layers), slowest, 0.0) if np.isfinite(slowest) else None


def partition_chain(
    times: Sequence[float],
    stages: int,
    *,
    memory: Optional[Sequence[float]] = None,
    limit: float = np.inf,
    cut_times: Optional[Sequence[float]] = None,
) -> Optional[Partition]:
    """Cut a plain chain: a stage takes the sum of its layers' times and of its cuts' transfers, and holds their memory.

    Args:
        times: One per layer.
        memory: One per layer, in the unit of `limit`.
        limit: Largest memory of one stage.
        cut_times: Transfer time over the cut after each layer but the last; both stages spend it.

    Returns:
        The best cutting, or None if none stays within the limit.
    """
    count = len(times)
    cuts = np.zeros(count + 1)
    if cut_times is not None:
        cuts[1:count] = cut_times
    time = SpanSums(times).matrix() + cuts[:, None] + cuts[None, :]
    if memory is not None:
        time = np.where(SpanSums(memory).matrix() <= limit, time, np.inf)
    return partition(lambda entries: lambda stage, rows: time[entries][rows], count, stages, cut_times)


class SpanSums:
    """The sums of values over every span: entry [i, j] is the sum of values i to j - 1, which is computed on a read."""

    def __init__(self, values: Sequence[float]) -> None:
        self._ends = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])

    def __getitem__(self, span: Index) -> Any:
        begin, end = span
        return self._ends[end] - self._ends[begin]

    def matrix(self) -> Matrix:
        """Return all entries."""
        sums: Matrix = self._ends[None, :] - self._ends[:, None]
        return sums


def span_peaks(values: Sequence[float]) -> Matrix:
    """Return the matrix whose entry [i, j] is the largest of values i to j - 1, and 0 for an empty span."""
    array = np.asarray(values, dtype=np.float64)
    peaks = np.zeros((len(array) + 1, len(array) + 1))
    for begin in range(len(array)):
        peaks[begin, begin + 1 :] = np.maximum.accumulate(array[begin:])
    return peaks
