"""Schedule of a pipeline from its stages' times: fill, steady state and drain."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ignite_ipu.errors import PlanError


@dataclass(frozen=True)
class StageTime:
    """Seconds, or any unit of time, that one stage takes for one micro-batch.

    `recompute` is the time of repeating its forward pass just before the backward pass.
    """

    forward: float
    backward: float = 0.0
    recompute: float = 0.0


class Slot(NamedTuple):
    """One span of one IPU's time: `kind` is "F" for forward, "B" for backward and recomputation, "U" for the update."""

    ipu: int
    stage: int
    kind: str
    micro_batch: int
    start: float
    end: float


_Row = Tuple[int, int, str, int, float, float]


class _Slots(Sequence[Slot]):
    """Slots of all device iterations, made of the first one's when they are read: most of a million are never read."""

    def __init__(self, first: List[_Row], iterations: int, span: float, micro_batches: int) -> None:
        self._first, self._iterations, self._span, self._micro_batches = first, iterations, span, micro_batches

    def __len__(self) -> int:
        return self._iterations * len(self._first)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(len(self))[index])
        iteration, place = divmod(range(len(self))[index], len(self._first))
        ipu, stage, kind, micro_batch, start, end = self._first[place]
        shift, earlier = iteration * self._span, iteration * self._micro_batches
        return Slot(ipu, stage, kind, micro_batch + earlier, start + shift, end + shift)


@dataclass(frozen=True)
class Schedule:
    """A simulated call of the executor.

    Args:
        makespan: Time from the first operation to the end of the last.
        busy: Time each IPU computes, updates included.
        filled: When the pipeline is full: the first stage has ended its first backward pass (training), or the last
            stage begins its first forward pass (inference).
        period: Time between two micro-batches in the steady state.
        slots: All slots with their times, if requested.
    """

    makespan: float
    busy: Tuple[float, ...]
    filled: float
    period: float
    slots: Sequence[Slot] = field(default=(), repr=False, compare=False)

    @property
    def utilisation(self) -> Tuple[float, ...]:
        """Share of the makespan that each IPU computes."""
        return tuple(busy / self.makespan for busy in self.busy)

    @property
    def bubble(self) -> float:
        """Share of all IPUs' time that is spent waiting."""
        return 1 - sum(self.utilisation) / len(self.busy)


def in_flight(stage: int, stages: int) -> int:
    """Return how many micro-batches a training stage has begun and not finished once the pipeline is full.

    Stage s of N runs 2 (N - s) forward passes before its first backward pass. In the pipelining tutorial's picture the
    first stage begins its first backward pass in step 2 N + 1.
    """
    return 2 * (stages - stage)


def simulate(
    times: Sequence[StageTime],
    micro_batches: int,
    *,
    training: bool = True,
    pipelined: bool = True,
    transfers: Optional[Sequence[float]] = None,
    ipus: Optional[Sequence[int]] = None,
    device_iterations: int = 1,
    update: float = 0.0,
    merge_last: bool = False,
    slots: bool = False,
) -> Schedule:
    """Simulate one call of the executor.

    Each IPU runs its operations in a fixed order, each as soon as its input has arrived. In a training pipeline stage s
    of N runs `in_flight(s, N)` forward passes, then one backward and one forward in turn, then the remaining backward
    passes. The weight update follows when all have ended, and only then the next device iteration. Sharded execution
    runs one micro-batch at a time.

    Args:
        times: One entry per stage.
        micro_batches: Micro-batches per device iteration: the gradient accumulation when training, 1 at inference.
        training: Whether a backward pass follows.
        pipelined: False for sharded execution.
        transfers: Time to move a micro-batch over each of the cuts between stages, either way; none by default.
        ipus: The IPU of each stage; the stage's number by default. Stages may share an IPU.
        device_iterations: Repetitions within the call. Inference streams through them without draining.
        update: Time of the weight update after each device iteration, on every IPU.
        merge_last: Let the last stage run forward and backward of a micro-batch back to back, as if they were one
            stage.
        slots: Keep every slot, for drawing.

    Raises:
        PlanError: Counts below 1, negative times, or lists of the wrong length.
    """
    places = list(range(len(times))) if ipus is None else list(ipus)
    moves = [0.0] * (len(times) - 1) if transfers is None else list(transfers)
    _check(times, micro_batches, device_iterations, moves, places)
    if not training:
        micro_batches, device_iterations, update = micro_batches * device_iterations, 1, 0.0
    stages = len(times)
    lengths = [[t.forward for t in times], [t.recompute + t.backward for t in times]][: 1 + training]
    ends = [[0.0] * stages for _ in lengths]  # of each stage's newest passes, forward and backward
    free = [0.0] * (1 + max(places))
    found: List[_Row] = []
    lead = stages + (not merge_last) if training else 0
    if pipelined:
        waves, full, steady = (
            range(-lead, micro_batches + stages - 1),
            stages - 1,
            range(stages, micro_batches - 1 - lead),
        )
    else:
        waves, full, steady = range(micro_batches), 0, range(1, micro_batches - 1)
    filled, wave = 0.0, waves.start
    while wave < waves.stop:
        before = [*free, *chain(*ends)]
        if not pipelined:
            free = [max(free)] * len(free)
        for stage, micro_batch, backward in _wave(wave, stages, training, lead if pipelined else None):
            if 0 <= micro_batch < micro_batches:
                place, giver = places[stage], stage + 1 if backward else stage - 1
                start = free[place]
                if 0 <= giver < stages:
                    start = max(start, ends[backward][giver] + moves[min(stage, giver)])
                free[place] = ends[backward][stage] = start + lengths[backward][stage]
                if slots:
                    found.append((place, stage, "FB"[backward], micro_batch, start, free[place]))
        if wave == full:
            filled = ends[1][0] if training else ends[0][-1] - pipelined * times[-1].forward
        if wave in steady and not slots:
            steps = [now - then for now, then in zip([*free, *chain(*ends)], before)]
            if max(steps) - min(steps) <= 1e-9 * max(steps):
                # The wave has moved every time by the same amount, and so will all up to the drain.
                skipped = steady.stop - wave
                free, *ends = [[time + skipped * steps[0] for time in each] for each in (free, *ends)]
                wave += skipped
        wave += 1
    span = max(free) + update
    busy = [0.0] * len(free)
    for place, *passes in zip(places, *lengths):
        busy[place] += micro_batches * sum(passes)
    found += [(ipu, ipu, "U", 0, span - update, span) for ipu in range(len(free)) if slots and update]
    return Schedule(
        makespan=device_iterations * span,
        busy=tuple(device_iterations * (b + update) for b in busy),
        filled=filled,
        period=max(busy) / micro_batches if pipelined else filled,
        slots=_Slots(found, device_iterations, span, micro_batches) if slots else (),
    )


def _wave(number: int, stages: int, training: bool, lead: Optional[int]) -> Iterator[Tuple[int, int, bool]]:
    """Yield passes that start one after the other: the stage, its micro-batch, and whether it is the backward pass.

    Wave d of a pipeline has in stage s of N the backward pass d - (N - 1 - s), then the forward pass d + lead - s.
    Without `lead` it has all passes of micro-batch d.
    """
    if lead is None:
        yield from ((stage, number, False) for stage in range(stages))
        yield from ((stage, number, True) for stage in reversed(range(stages if training else 0)))
    else:
        yield from ((stage, number - stages + 1 + stage, True) for stage in range(stages if training else 0))
        yield from ((stage, number + lead - stage, False) for stage in reversed(range(stages)))


def _check(
    times: Sequence[StageTime],
    micro_batches: int,
    device_iterations: int,
    moves: Sequence[float],
    places: Sequence[int],
) -> None:
    if not times:
        raise PlanError("A schedule needs at least one stage, and the list of stage times is empty.")
    for name, count in (("micro_batches", micro_batches), ("device_iterations", device_iterations)):
        if count < 1:
            raise PlanError(f"{name} is {count}; it must be at least 1.")
    if any(value < 0 for t in times for value in (t.forward, t.backward, t.recompute)) or any(m < 0 for m in moves):
        raise PlanError("A stage or a transfer has a negative time; times start at 0.")
    if len(moves) != len(times) - 1:
        raise PlanError(
            f"{len(moves)} transfer times for {len(times)} stages; there are {len(times) - 1} cuts between them."
        )
    if len(places) != len(times):
        raise PlanError(f"{len(places)} IPUs for {len(times)} stages; give one IPU to each stage.")
    if set(places) != set(range(max(places) + 1)):
        raise PlanError(f"The stages are on IPUs {sorted(set(places))}; number them from 0 without gaps.")
