"""Spans of layers that stages hold: the best ones, or given ones."""

from __future__ import annotations

from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.partition import Index, Matrix, partition
from ignite_ipu.pipeline.costs.stages import MemoryModel, TimeModel
from ignite_ipu.pipeline.planning.plan import StagePlan
from ignite_ipu.pipeline.profiling.profile import Profile

_Span = Tuple[int, int, int]
"""First layer, layer after the last, IPU."""


class _Layout(NamedTuple):
    """Layout of a chain over IPUs.

    Layers from `tail` on form a last stage of their own on IPU 0; it equals the number of layers where there is none.
    `closed` has a True where a stage must not begin.
    """

    tail: int
    closed: List[bool]


def best_stages(
    profile: Profile, ipus: int, memory: MemoryModel, time: TimeModel, machine: Machine
) -> Tuple[StagePlan, ...]:
    """Lay the layers out over `ipus` IPUs.

    Pipelined, the slowest IPU is as fast as can be among the layouts that fit; sharded, where only the sum of times
    counts, the fullest IPU is as empty as can be, and so it is where no layout fits. Layers that share a weight stay on
    one IPU: either no stage begins between them, or the last of them run as an extra stage on IPU 0, beside the first
    of them.

    Raises:
        PlanError: Fewer layers than IPUs, or shared weights that leave no layout.
    """
    count = len(profile.layers)
    if ipus > count:
        raise PlanError(
            f"{profile.model} was measured as {count} layers, which cannot fill {ipus} IPUs. Use at most {count}, or "
            "measure with a finer granularity."
        )
    found: List[Tuple[bool, float, List[_Span]]] = []
    for layout in _layouts(profile, ipus):
        for limit in (float(machine.usable_memory), np.inf):
            spans = _solve(profile, layout, ipus, memory, time, limit)
            if spans is not None:
                found.append((limit == np.inf, *spans))
                break
    if not found:
        names = ", ".join(weight.name for weight in profile.shared)
        raise PlanError(
            f"No layout of {profile.model} over {ipus} IPUs keeps the layers that share {names} on one IPU. Use fewer "
            "IPUs."
        )
    _, _, best = min(found, key=lambda entry: entry[:2])
    return described(profile, best, memory, time)


def described(profile: Profile, spans: Sequence[_Span], memory: MemoryModel, time: TimeModel) -> Tuple[StagePlan, ...]:
    """Return the stages for spans of layers, with their estimates."""
    names = profile.names
    return tuple(
        StagePlan(
            ipu=ipu,
            begin=begin,
            end=end,
            layers=names[begin:end],
            time=time.stage(begin, end),
            memory=memory.stage(begin, end, stage, len(spans)),
        )
        for stage, (begin, end, ipu) in enumerate(spans)
    )


def given_stages(
    profile: Profile, sizes: Sequence[int], ipus: Optional[Sequence[int]], memory: MemoryModel, time: TimeModel
) -> Tuple[StagePlan, ...]:
    """Return the stages of a layout that somebody chose: layers per stage, and the stages' IPUs (in order by default).

    Raises:
        PlanError: Sizes that are not positive or do not add up to the number of layers.
    """
    if any(size < 1 for size in sizes) or sum(sizes) != len(profile.layers):
        raise PlanError(
            f"The stages hold {list(sizes)} layers, {sum(sizes)} in all, but {profile.model} has "
            f"{len(profile.layers)}; every stage needs at least one."
        )
    places = list(range(len(sizes))) if ipus is None else list(ipus)
    ends = np.cumsum(sizes).tolist()
    spans = [(end - size, end, place) for size, end, place in zip(sizes, ends, places)]
    return described(profile, spans, memory, time)


def _layouts(profile: Profile, ipus: int) -> List[_Layout]:
    count = len(profile.layers)
    layouts = [_Layout(count, _closed(profile, count))]
    if profile.shared and ipus > 1:
        tail = max(max(weight.layers) for weight in profile.shared)
        if ipus <= tail:
            layouts.append(_Layout(tail, _closed(profile, tail)))
    return layouts


def _closed(profile: Profile, tail: int) -> List[bool]:
    closed = [False] * (tail + 1)
    for weight in profile.shared:
        ahead = [layer for layer in weight.layers if layer < tail]
        # Users beside the tail's must be on IPU 0, so they extend the first stage.
        begin = 0 if len(ahead) < len(weight.layers) else ahead[0]
        for layer in range(begin + 1, ahead[-1] + 1):
            closed[layer] = True
    return closed


def _solve(
    profile: Profile, layout: _Layout, ipus: int, memory: MemoryModel, time: TimeModel, limit: float
) -> Optional[Tuple[float, List[_Span]]]:
    count, tail = len(profile.layers), layout.tail
    folded = tail < count
    stages = ipus + folded
    closed = np.asarray(layout.closed)

    beside, seconds = (tail, count), time.totals
    by_time = memory.strategy.pipelined and limit < np.inf
    # What the first IPU has besides, when the last layers are a stage of its own.
    held_besides = float(memory.totals(stages, beside)(stages - 1)) if folded else 0.0
    spent_besides = float(seconds[beside]) if folded else 0.0

    def allowed_costs(entries: Index) -> Callable[[int], Matrix]:
        is_closed = np.broadcast_to(closed[:, None], (tail + 1, tail + 1))[entries]
        held, spent = memory.totals(stages, entries), seconds[entries]

        def cost(stage: int) -> Matrix:
            need = held(stage) + held_besides * (stage == 0)
            return np.where(
                (need <= limit) & ~is_closed, spent + spent_besides * (stage == 0) if by_time else need, np.inf
            )

        return cost

    best = partition(allowed_costs, tail, ipus, profile.cut_bytes[: tail - 1])
    if best is None:
        return None
    spans = [(begin, end, ipu) for ipu, (begin, end) in enumerate(zip(best.bounds, best.bounds[1:]))]
    return best.slowest, [*spans, *([(tail, count, 0)] if folded else [])]
