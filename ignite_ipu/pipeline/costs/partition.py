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
"""Choice of entries of such a matrix: numbers, slices or arrays of i and of j."""

StageTimes = Callable[[Index], Callable[[int], Matrix]]
"""Gives for entries, and then for a stage number, the time of that stage, infinite where it is not allowed."""


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
    stage_times: StageTimes, layers: int, stages: int, cut_bytes: Optional[Sequence[float]] = None
) -> Optional[Partition]:
    """Cut `layers` layers into exactly `stages` non-empty stages so that the slowest is fastest, or return None.

    Of all cuttings with that slowest stage it takes one that moves the least over its cuts. Dynamic programming over
    (stage, last layer) tries every cutting into stages of up to twice the average number of layers. The limit doubles
    while a longer stage could be as fast. The time is O(layers^2), if stages are much alike.

    Args:
        stage_times: The time of stages; no stage is faster than the last with the same layers.
        cut_bytes: Bytes that a cut after each layer but the last moves; 0 by default.
    """
    if stages < 1 or stages > layers:
        raise PlanError(
            f"{layers} layers cannot fill {stages} stages. Use between 1 and {layers}, or measure with a finer "
            "granularity."
        )
    moved = np.zeros(layers + 1)
    if cut_bytes is not None:
        moved[1:layers] = cut_bytes
    fastest = stage_times((slice(layers + 1), slice(layers + 1)))(stages - 1)
    longest = -(-layers // stages)
    while True:
        longest = min(2 * longest, layers)
        found = _with_stages_up_to(longest, stage_times, layers, stages, moved)
        rows = enumerate(fastest[: layers - longest])
        longer = min([row[begin + longest + 1 :].min() for begin, row in rows], default=np.inf)
        if longer > (np.inf if found is None else found.slowest) or np.isinf(longer):
            return found


def _with_stages_up_to(
    longest: int, stage_times: StageTimes, layers: int, stages: int, moved: npt.NDArray[np.float64]
) -> Optional[Partition]:
    """Return the best cutting into stages of up to `longest` layers."""
    ends = np.arange(1, layers + 1)[:, None]
    begins = ends - np.arange(longest, 0, -1)
    exist = begins >= 0
    begins = np.maximum(begins, 0)
    time_of = stage_times((begins, ends))
    times = [np.where(exist, time_of(stage), np.inf) for stage in range(stages)]
    start = np.full(layers + 1, np.inf)
    start[0] = 0.0
    reach = start.copy()
    for time in times:
        reach[1:], reach[0] = np.maximum(reach[begins], time).min(axis=1), np.inf
    slowest = float(reach[layers])
    if not np.isfinite(slowest):
        return None
    total = start
    choices = []
    for time in times:
        sums = np.where(time <= slowest, (total + moved)[begins], np.inf)
        best = sums.argmin(axis=1)[:, None]
        choices.append(np.take_along_axis(begins, best, 1)[:, 0])
        total[1:], total[0] = np.take_along_axis(sums, best, 1)[:, 0], np.inf
    bounds = [layers]
    for choice in reversed(choices):
        bounds.append(int(choice[bounds[-1] - 1]))
    return Partition(tuple(reversed(bounds)), slowest, float(total[layers]))


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
    time = span_sums(times) + cuts[:, None] + cuts[None, :]
    if memory is not None:
        time = np.where(span_sums(memory) <= limit, time, np.inf)
    return partition(lambda entries: lambda stage: time[entries], count, stages, cut_times)


def span_sums(values: Sequence[float]) -> Matrix:
    """Return the matrix whose entry [i, j] is the sum of values i to j - 1."""
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(values, dtype=np.float64))])
    sums: Matrix = ends[None, :] - ends[:, None]
    return sums


def span_peaks(values: Sequence[float]) -> Matrix:
    """Return the matrix whose entry [i, j] is the largest of values i to j - 1, and 0 for an empty span."""
    array = np.asarray(values, dtype=np.float64)
    peaks = np.zeros((len(array) + 1, len(array) + 1))
    for begin in range(len(array)):
        peaks[begin, begin + 1 :] = np.maximum.accumulate(array[begin:])
    return peaks
