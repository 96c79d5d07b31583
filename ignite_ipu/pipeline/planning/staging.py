"""Spans of layers that stages hold: the best ones, or given ones."""

from __future__ import annotations

from itertools import accumulate, count
from typing import Callable, List, Optional, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.partition import Index, Matrix, partition
from ignite_ipu.pipeline.costs.stages import MemoryModel, TimeModel
from ignite_ipu.pipeline.profiling.profile import Profile

Span = Tuple[int, int, int]
"""First layer, layer after the last, IPU."""


def best_spans(profile: Profile, ipus: int, memory: MemoryModel, time: TimeModel, machine: Machine) -> List[Span]:
    """Lay the layers out over `ipus` IPUs.

    Pipelined, the slowest IPU is as fast as can be among the layouts that fit; sharded, where only the sum of times
    counts, the fullest IPU is as empty as can be, and so it is where no layout fits. Layers that share a weight stay on
    one IPU: either no stage begins between them, or the last of them run as an extra stage on IPU 0, beside the first
    of them.

    Raises:
        PlanError: Fewer layers than IPUs, or shared weights that leave no layout.
    """
    layers = len(profile.layers)
    if ipus > layers:
        raise PlanError(
            f"{profile.model} was measured as {layers} layers, which cannot fill {ipus} IPUs. Use at most {layers}, or "
            "measure with a finer granularity."
        )
    # Layers from the tail on are the extra stage; it is none where the tail is the number of layers.
    last_shared = max((max(weight.layers) for weight in profile.shared), default=0)
    found: List[Tuple[bool, float, List[Span]]] = []
    for tail in [layers, last_shared] if 1 < ipus <= last_shared else [layers]:
        for limit in (float(machine.usable_memory), np.inf):
            solved = _solve(profile, tail, ipus, memory, time, limit)
            if solved is not None:
                found.append((limit == np.inf, *solved))
                break
    if not found:
        names = ", ".join(weight.name for weight in profile.shared)
        raise PlanError(
            f"No layout of {profile.model} over {ipus} IPUs keeps the layers that share {names} on one IPU. Use fewer "
            "IPUs."
        )
    return min(found, key=lambda entry: entry[:2])[2]


def given_spans(profile: Profile, sizes: Sequence[int], ipus: Optional[Sequence[int]]) -> List[Span]:
    """Return a layout that somebody chose: layers per stage, and the stages' IPUs (in order by default).

    Raises:
        PlanError: Sizes that are not positive or do not add up to the number of layers.
    """
    if any(size < 1 for size in sizes) or sum(sizes) != len(profile.layers):
        raise PlanError(
            f"The stages hold {list(sizes)} layers, {sum(sizes)} in all, but {profile.model} has "
            f"{len(profile.layers)}; every stage needs at least one."
        )
    ends = accumulate(sizes)
    return [(end - size, end, place) for size, end, place in zip(sizes, ends, count() if ipus is None else ipus)]


def _closed(profile: Profile, tail: int) -> npt.NDArray[np.bool_]:
    """Return for each layer whether no stage may begin there, with those from the tail on beside the first IPU's."""
    closed = np.zeros(tail + 1, dtype=bool)
    for weight in profile.shared:
        ahead = [layer for layer in weight.layers if layer < tail]
        # Users beside the tail's must be on IPU 0, so they extend the first stage.
        begin = 0 if len(ahead) < len(weight.layers) else ahead[0]
        closed[begin + 1 : ahead[-1] + 1] = True
    return closed


def _solve(
    profile: Profile, tail: int, ipus: int, memory: MemoryModel, time: TimeModel, limit: float
) -> Optional[Tuple[float, List[Span]]]:
    layers, seconds = len(profile.layers), time.totals
    folded = tail < layers
    stages = ipus + folded
    closed = np.broadcast_to(_closed(profile, tail)[:, None], (tail + 1, tail + 1))
    by_time = memory.strategy.pipelined and limit < np.inf
    # What the first IPU has besides, when the last layers are a stage of its own.
    held_besides = float(memory.totals(stages, (tail, layers))(stages - 1)) if folded else 0.0
    spent_besides = float(seconds[tail, layers]) if folded else 0.0

    def allowed_costs(entries: Index) -> Callable[[int], Matrix]:
        is_closed, held, spent = closed[entries], memory.totals(stages, entries), seconds[entries]

        def cost(stage: int) -> Matrix:
            need = held(stage) + held_besides * (stage == 0)
            chosen = spent + spent_besides * (stage == 0) if by_time else need
            return np.where((need <= limit) & ~is_closed, chosen, np.inf)

        return cost

    best = partition(allowed_costs, tail, ipus, profile.cut_bytes[: tail - 1])
    if best is None:
        return None
    spans = [(begin, end, ipu) for ipu, (begin, end) in enumerate(zip(best.bounds, best.bounds[1:]))]
    return best.slowest, [*spans, *([(tail, layers, 0)] if folded else [])]
