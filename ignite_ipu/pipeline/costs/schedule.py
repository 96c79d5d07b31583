"""Schedule of a pipeline from its stages' times: fill, steady state and drain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional, Sequence, Tuple

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs.slots import Slot, Slots


@dataclass(frozen=True)
class StageTime:
    """Seconds, or any unit of time, that one stage takes for one micro-batch.

    `recompute` is what it spends on repeating its forward pass just before the backward pass.
    """

    forward: float
    backward: float = 0.0
    recompute: float = 0.0


@dataclass(frozen=True)
class Schedule:
    """A simulated call of the executor.

    Args:
        makespan: Time from the first operation to the end of the last.
        busy: Time each IPU computes, updates included.
        filled: When the pipeline is full: the first stage has ended its first backward pass (training), or the last
            stage begins its first forward pass (inference).
        period: Time between two micro-batches in the steady state.
        slots: What ran when, if asked for.
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


def in_flight(stage: int, stages: int, merge_last: bool = False) -> int:
    """Return how many micro-batches a training stage has begun and not finished once the pipeline is full.

    Stage s of N runs 2 (N - s) forward passes before its first backward pass, one less with `merge_last`. This is the
    pipelining tutorial's picture, in which the first stage begins its first backward pass in step 2 N + 1.
    """
    return 2 * (stages - stage) - int(merge_last)


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
    of N runs `in_flight(s, N)` forward passes, then one backward and one forward in turn, then the backward passes
    left; the weight update follows when all have ended, and only then the next device iteration. Sharded execution runs
    one micro-batch at a time.

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
    backward = [t.recompute + t.backward for t in times]
    run = _Run([t.forward for t in times], backward if training else [], moves, places, micro_batches, slots)
    if not pipelined:
        run.sharded()
    elif training:
        run.pipeline_training(len(times) + (0 if merge_last else 1))
    else:
        run.pipeline_inference()
    end = max(run.free)
    span = end + update
    busy = [0.0] * len(run.free)
    for stage, place in enumerate(places):
        busy[place] += micro_batches * (times[stage].forward + (backward[stage] if training else 0.0))
    if run.slots is not None:
        run.slots.repeat(device_iterations, span, micro_batches, update)
    return Schedule(
        makespan=device_iterations * span,
        busy=tuple(device_iterations * (b + update) for b in busy),
        filled=run.filled,
        period=max(busy) / micro_batches if pipelined else run.filled,
        slots=run.slots or (),
    )


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


class _Run:
    """The state of a simulation: when each IPU is free, and when each stage's newest results were ready."""

    def __init__(
        self,
        forward: List[float],
        backward: List[float],
        moves: List[float],
        places: List[int],
        micro_batches: int,
        keep: bool,
    ) -> None:
        self.forward, self.backward, self.moves, self.places = forward, backward, moves, places
        self.micro_batches = micro_batches
        self.free = [0.0] * (max(places) + 1)
        self.forward_end = [0.0] * len(forward)
        self.backward_end = [0.0] * len(backward)
        self.filled = 0.0
        self.slots = Slots(forward, backward, places) if keep else None

    def _forward(self, stage: int, micro_batch: int) -> None:
        place = self.places[stage]
        start = self.free[place]
        if stage and self.forward_end[stage - 1] + self.moves[stage - 1] > start:
            start = self.forward_end[stage - 1] + self.moves[stage - 1]
        self.free[place] = self.forward_end[stage] = start + self.forward[stage]
        if self.slots is not None:
            self.slots.add(stage, False, micro_batch, start)

    def _backward(self, stage: int, micro_batch: int) -> None:
        place = self.places[stage]
        start = self.free[place]
        if stage < len(self.moves) and self.backward_end[stage + 1] + self.moves[stage] > start:
            start = self.backward_end[stage + 1] + self.moves[stage]
        self.free[place] = self.backward_end[stage] = start + self.backward[stage]
        if self.slots is not None:
            self.slots.add(stage, True, micro_batch, start)

    def sharded(self) -> None:
        """Run one micro-batch after another; all are alike, so two give the time of any number."""
        last = len(self.forward) - 1
        for micro_batch in range(self.micro_batches):
            self.free = [max(self.free)] * len(self.free)
            began = self.free[0]
            for stage in range(last + 1):
                self._forward(stage, micro_batch)
            if self.backward:
                # Nothing overlaps: the last forward pass is what the backward pass waits for.
                self.free = [max(self.free)] * len(self.free)
                for stage in range(last, -1, -1):
                    self._backward(stage, micro_batch)
            if micro_batch == 0:
                self.filled = max(self.free)
                if self.slots is None:
                    self._skip(self.micro_batches - 1, self.filled - began)
                    return

    def pipeline_inference(self) -> None:
        """Run wave d: stage s takes micro-batch d - s."""
        stages = len(self.forward)
        wave = 0
        while wave < self.micro_batches + stages - 1:
            before = self._state()
            for stage in range(stages - 1, -1, -1):
                if 0 <= wave - stage < self.micro_batches:
                    self._forward(stage, wave - stage)
            if wave == stages - 1:
                self.filled = self.forward_end[-1] - self.forward[-1]
            if stages <= wave < self.micro_batches - 1:
                wave += self._fast_forward(before, self.micro_batches - 1 - wave)
            wave += 1

    def pipeline_training(self, lead: int) -> None:
        """Run wave d: stage s of N takes backward pass d - (N - 1 - s), then forward pass d + lead - s."""
        stages = len(self.forward)
        wave = -lead
        while wave < self.micro_batches + stages - 1:
            before = self._state()
            for stage in range(stages):
                if 0 <= wave - (stages - 1 - stage) < self.micro_batches:
                    self._backward(stage, wave - (stages - 1 - stage))
            if wave == stages - 1:
                self.filled = self.backward_end[0]
            for stage in range(stages - 1, -1, -1):
                if 0 <= wave + lead - stage < self.micro_batches:
                    self._forward(stage, wave + lead - stage)
            if stages <= wave < self.micro_batches - 1 - lead:
                wave += self._fast_forward(before, self.micro_batches - 1 - lead - wave)
            wave += 1

    def _state(self) -> Tuple[float, ...]:
        return () if self.slots is not None else (*self.free, *self.forward_end, *self.backward_end)

    def _fast_forward(self, before: Tuple[float, ...], waves: int) -> int:
        """Skip to the drain once a whole wave has moved every time by the same amount: all further waves will too."""
        if self.slots is not None:
            return 0
        steps = [now - then for now, then in zip(self._state(), before)]
        if max(steps) - min(steps) > 1e-9 * max(steps):
            return 0
        self._skip(waves, steps[0])
        return waves

    def _skip(self, waves: int, step: float) -> None:
        self.free = [t + waves * step for t in self.free]
        self.forward_end = [t + waves * step for t in self.forward_end]
        self.backward_end = [t + waves * step for t in self.backward_end]
