"""The best way to cut a chain of layers into consecutive stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from ignite_ipu.errors import PlanError

Matrix = npt.NDArray[np.float64]
"""Entry [i, j] speaks of a stage that holds the layers i up to, not including, j."""


@dataclass(frozen=True)
class Partition:
    """A chain cut into stages.

    Args:
        bounds: Where stages begin, and the end: stage s holds the layers `bounds[s]` up to `bounds[s + 1]`.
        slowest: Time of the slowest stage.
        moved: Sum over the cuts of what they move, in the unit of `cut_bytes`.
    """

    bounds: Tuple[int, ...]
    slowest: float
    moved: float

    @property
    def sizes(self) -> Tuple[int, ...]:
        """Layers per stage."""
        return tuple(end - begin for begin, end in zip(self.bounds, self.bounds[1:]))


def partition(
    stage_time: Callable[[int], Matrix], layers: int, stages: int, cut_bytes: Optional[Sequence[float]] = None
) -> Optional[Partition]:
    """Cut `layers` layers into exactly `stages` non-empty stages so that the slowest is fastest, or return None.

    Of all cuttings with that slowest stage it takes one that moves the least over its cuts. Dynamic programming over
    (stage, last layer) tries every cutting: O(stages * layers^2).

    Args:
        stage_time: For a stage number, a square matrix of `layers + 1` rows whose entry [i, j] is the time of that
            stage when it holds the layers i to j - 1, infinite where that is not allowed.
        layers: Number of layers.
        stages: Number of stages.
        cut_bytes: What a cut after each layer but the last moves; nothing by default.

    Raises:
        PlanError: More stages than layers, or fewer than one.
    """
    if stages < 1 or stages > layers:
        raise PlanError(
            f"{layers} layers cannot fill {stages} stages. Use between 1 and {layers}, or measure with a finer "
            "granularity."
        )
    moved = np.zeros(layers + 1)
    if cut_bytes is not None:
        moved[1:layers] = cut_bytes
    allowed = np.triu(np.ones((layers + 1, layers + 1), dtype=bool), 1)
    times = [np.where(allowed, stage_time(stage), np.inf) for stage in range(stages)]
    start = np.full(layers + 1, np.inf)
    start[0] = 0.0
    reach = start
    for time in times:
        reach = np.maximum(reach[:, None], time).min(axis=0)
    slowest = float(reach[layers])
    if not np.isfinite(slowest):
        return None
    total = start
    choices = []
    for time in times:
        sums = np.where(time <= slowest, (total + moved)[:, None], np.inf)
        choices.append(sums.argmin(axis=0))
        total = sums.min(axis=0)
    bounds = [layers]
    for choice in reversed(choices):
        bounds.append(int(choice[bounds[-1]]))
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
        stages: Number of stages.
        memory: One per layer, in the unit of `limit`.
        limit: What one stage may hold.
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
    return partition(lambda stage: time, count, stages, cut_times)


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
