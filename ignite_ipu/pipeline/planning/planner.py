"""One strategy on a given number of IPUs, planned in full: the spans of layers that stages hold, and the settings."""

from __future__ import annotations

from functools import partial
from itertools import accumulate, count
from math import ceil
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt
from torch.optim import Optimizer

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs import checks
from ignite_ipu.pipeline.costs.machine import MK2, Machine
from ignite_ipu.pipeline.costs.partition import Index, Matrix, partition
from ignite_ipu.pipeline.costs.schedule import simulate
from ignite_ipu.pipeline.costs.stages import MemoryModel, OptimizerState, Strategy, TimeModel, optimizer_state
from ignite_ipu.pipeline.placing.placement import Placement
from ignite_ipu.pipeline.planning.plan import Plan, StagePlan
from ignite_ipu.pipeline.profiling.profile import Profile
from ignite_ipu.pipeline.units import bytes_text, seconds_text

_Span = Tuple[int, int, int]
"""First layer, layer after the last, IPU."""

_FILL_SHARE = 0.1
"""Share of a step that filling, draining and updating may take before more micro-batches are proposed."""

_MOST_ACCUMULATION = 64
"""Beyond this, or a pipeline's minimum, no accumulation is proposed: the global batch is the user's to enlarge."""

_CALL_SHARE = 0.05
"""Share of a call that the host's part may take before more device iterations are proposed."""


def plan(
    profile: Profile,
    ipus_per_replica: int,
    *,
    replicas: int = 1,
    available: Optional[int] = None,
    strategy: Optional[Strategy] = None,
    optimizer: Union[Optimizer, OptimizerState, str] = "adamw",
    machine: Machine = MK2,
    global_batch: Optional[int] = None,
    accumulation: Optional[int] = None,
    device_iterations: Optional[int] = None,
    sizes: Optional[Sequence[int]] = None,
    stage_ipus: Optional[Sequence[int]] = None,
) -> Plan:
    """Plan one strategy on a given number of IPUs, whether it fits or not.

    Args:
        ipus_per_replica: IPUs for one copy of the model.
        replicas: Data-parallel copies.
        available: IPUs there are; just enough by default.
        strategy: The strategy; pipelined, with everything on chip, by default.
        optimizer: The optimizer that trains, or its name.
        global_batch: Samples per weight update, instead of `accumulation`.
        accumulation: Micro-batches per weight update; proposed by default.
        device_iterations: Repetitions per call; proposed by default.
        sizes: Layers per stage, instead of the best partition.
        stage_ipus: The IPU of each of those stages; in order by default.

    Raises:
        PlanError: More stages than layers, or a global batch that the replicas do not divide.
    """
    strategy = strategy or Strategy()
    state = optimizer_state(optimizer)
    memory = MemoryModel(profile, state, strategy, replicas)
    time = TimeModel(profile, machine, strategy.recompute, ipus_per_replica, replicas)
    if sizes is None:
        spans = _best_spans(ipus_per_replica, memory, time, machine)
    else:
        spans = _given_spans(profile, sizes, stage_ipus)
    names = profile.names
    stages = tuple(
        StagePlan(ipu, begin, end, names[begin:end], time.stage(begin, end), memory.stage(begin, end, n, len(spans)))
        for n, (begin, end, ipu) in enumerate(spans)
    )
    update = _update_seconds(stages, memory, machine)
    times, places = [stage.time for stage in stages], [stage.ipu for stage in stages]
    depth = len(stages) if strategy.pipelined else 1
    simulated = partial(simulate, times, training=profile.training, pipelined=strategy.pipelined, ipus=places)
    passes = 4 * len(stages)
    probe = simulated(passes)
    fill = max(0.0, probe.makespan - passes * probe.period)
    reasons: List[Optional[str]] = []
    if not profile.training:
        accumulation = 1
        if device_iterations is None:
            device_iterations, *reasons = _propose_inference_iterations(depth, fill, probe.period, machine)
    else:
        if global_batch is not None:
            accumulation = _accumulation_for(profile, global_batch, replicas)
            reasons = [f"accumulation {accumulation}: gives the global batch of {global_batch}"]
        elif accumulation is None:
            accumulation, *reasons = _propose_accumulation(depth, fill, update, probe.period)
        if device_iterations is None:
            step = fill + accumulation * probe.period + update
            device_iterations, reason = _propose_training_iterations(step, machine)
            reasons.append(reason)
    reasons.append(checks.process_note(ipus_per_replica * replicas, machine))
    problems = [
        checks.replication_problem(ipus_per_replica, replicas, available or ipus_per_replica * replicas, machine),
        checks.accumulation_problem(depth, accumulation)
        if profile.training
        else checks.device_iterations_problem(depth, device_iterations),
        *checks.shared_weight_problems(profile, [stage.ipu for stage in stages for _ in stage.layers]),
        *_memory_problems(stages, memory, machine),
    ]
    return Plan(
        profile=profile,
        machine=machine,
        optimizer=state,
        strategy=strategy,
        stages=stages,
        replicas=replicas,
        accumulation=accumulation,
        device_iterations=device_iterations,
        update_seconds=update,
        iteration=simulated(accumulation if profile.training else device_iterations, update=update),
        problems=tuple(filter(None, problems)),
        reasons=tuple(filter(None, reasons)),
    )


def plan_placement(profile: Profile, placement: Placement, **settings: Any) -> Plan:
    """Plan with the stages of a placement, without its loss's.

    Args:
        profile: The model, measured with `granularity=placement.layers(model)`.
        placement: Where stages begin.
        **settings: As for `plan`.

    Raises:
        PlanError: The profile lacks a layer of the placement, or has them in another order.
    """
    sizes = placement.sizes(profile)
    ipus = placement.ipus[: len(sizes)]
    return plan(profile, placement.ipus_per_replica, sizes=sizes, stage_ipus=ipus, **settings)


def _best_spans(ipus: int, memory: MemoryModel, time: TimeModel, machine: Machine) -> List[_Span]:
    """Lay the layers out over `ipus` IPUs.

    Pipelined, the slowest IPU is as fast as possible among the layouts that fit. Sharded, where only the sum of times
    counts, and where no layout fits, the fullest IPU is as empty as possible. Layers that share a weight stay on one
    IPU. Either no stage begins between them, or the last of them run as an extra stage on IPU 0, beside the first.
    """
    profile = memory.profile
    layers = len(profile.layers)
    if ipus > layers:
        raise PlanError(
            f"{profile.model} was measured as {layers} layers, which cannot fill {ipus} IPUs. Use at most {layers}, or "
            "measure with a finer granularity."
        )
    # Layers from the tail on are the extra stage; it is none where the tail is the number of layers.
    last_shared = max((max(weight.layers) for weight in profile.shared), default=0)
    found: List[Tuple[bool, float, List[_Span]]] = []
    for tail in [layers, last_shared] if 1 < ipus <= last_shared else [layers]:
        for limit in (float(machine.usable_memory), np.inf):
            solved = _solve(tail, ipus, memory, time, limit)
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


def _given_spans(profile: Profile, sizes: Sequence[int], ipus: Optional[Sequence[int]]) -> List[_Span]:
    """Return a given layout: layers per stage, and the stages' IPUs (in order by default)."""
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
    tail: int, ipus: int, memory: MemoryModel, time: TimeModel, limit: float
) -> Optional[Tuple[float, List[_Span]]]:
    profile = memory.profile
    layers = len(profile.layers)
    folded = tail < layers
    stages = ipus + folded
    closed = _closed(profile, tail)
    by_time = memory.strategy.pipelined and limit < np.inf
    # The additional layers of the first IPU, if the last layers are a stage of its own.
    held_besides = float(memory.totals(stages, (tail, layers))(stages - 1, ...)) if folded else 0.0
    spent_besides = float(time.totals((tail, layers))) if folded else 0.0

    def allowed_costs(entries: Index) -> Callable[[int, Any], Matrix]:
        is_open, held, spent = ~closed[entries[0]], memory.totals(stages, entries), time.totals(entries)

        def cost(stage: int, rows: Any) -> Matrix:
            need = held(stage, rows) + held_besides * (stage == 0)
            chosen = spent[rows] + spent_besides * (stage == 0) if by_time else need
            return np.where((need <= limit) & is_open[rows], chosen, np.inf)

        return cost

    def longer(longest: int) -> float:
        begins = np.arange(tail - longest)
        entries = begins, begins + longest + 1
        need = memory.totals(stages, entries)(ipus - 1, ...)  # which grows with the end of a stage
        costs = time.least(entries) if by_time else need
        # The sums are rounded.
        return float(np.where(need <= limit, costs, np.inf).min()) * (1 - 1e-9)

    best = partition(allowed_costs, tail, ipus, profile.cut_bytes[: tail - 1], longer)
    if best is None:
        return None
    spans = [(begin, end, ipu) for ipu, (begin, end) in enumerate(zip(best.bounds, best.bounds[1:]))]
    return best.slowest, [*spans, *([(tail, layers, 0)] if folded else [])]


def _accumulation_for(profile: Profile, global_batch: int, replicas: int) -> int:
    rows = profile.samples * replicas
    if global_batch < rows or global_batch % rows:
        raise PlanError(
            f"A global batch of {global_batch} is no multiple of {profile.samples} samples per micro-batch * "
            f"{replicas} replicas = {rows}. Use {max(rows, global_batch // rows * rows)}, or fewer replicas."
        )
    return global_batch // rows


def _propose_accumulation(depth: int, fill: float, update: float, period: float) -> Tuple[int, str]:
    """Return an accumulation that keeps fill, drain and update at a tenth of a step, at most 64, and the reason."""
    least = max(1, 2 * depth - 1)
    wanted = ceil((fill + update) * (1 - _FILL_SHARE) / (_FILL_SHARE * period)) if period else least
    chosen = max(least, min(wanted, _MOST_ACCUMULATION))
    share = (fill + update) / (fill + update + chosen * period) if chosen * period else 0.0
    rule = f"PopTorch asks for at least 2 * {depth} - 1 = {least}" if depth > 1 else "no pipeline sets a minimum"
    return chosen, (
        f"accumulation {chosen}: {rule}; filling and draining take {seconds_text(fill)} and the update "
        f"{seconds_text(update)}, which is {share:.0%} of a step with {chosen} micro-batches of {seconds_text(period)}"
    )


def _propose_training_iterations(step: float, machine: Machine) -> Tuple[int, str]:
    """Return device iterations that keep the host's part of a training call small, and the reason."""
    overhead = machine.call_overhead
    chosen = max(1, ceil(overhead * (1 - _CALL_SHARE) / (_CALL_SHARE * step)))
    return chosen, (
        f"device iterations {chosen}: the host spends {seconds_text(overhead)} around each call, {chosen} steps of "
        f"{seconds_text(step)} keep that at {overhead / (overhead + chosen * step):.0%}"
    )


def _propose_inference_iterations(depth: int, fill: float, period: float, machine: Machine) -> Tuple[int, str]:
    """Return device iterations that keep filling and the host's part of an inference call small, and the reason."""
    overhead = fill + machine.call_overhead
    chosen = max(depth, ceil(overhead * (1 - _FILL_SHARE) / (_FILL_SHARE * period)))
    rule = f"PopTorch asks for at least {depth}, one per stage" if depth > 1 else "no pipeline sets a minimum"
    return chosen, (
        f"device iterations {chosen}: {rule}; filling takes {seconds_text(fill)} and the host "
        f"{seconds_text(machine.call_overhead)}, which is {overhead / (overhead + chosen * period):.0%} of a call "
        f"with {chosen} micro-batches of {seconds_text(period)}"
    )


def _update_seconds(stages: Sequence[StagePlan], memory: MemoryModel, machine: Machine) -> float:
    """Estimate the weight update: all-reduce of gradients, state from and to off-chip memory, and the arithmetic.

    The arithmetic is priced as the bytes it touches; off-chip state crosses the host link twice, its replicated shards
    once per replica together.
    """
    profile, strategy, optimizer, replicas = memory.profile, memory.strategy, memory.optimizer, memory.replicas
    if not profile.training:
        return 0.0
    ipus = 1 + max(stage.ipu for stage in stages)
    gradients, elements = [0.0] * ipus, [0] * ipus
    for stage in stages:
        layers = profile.layers[stage.begin : stage.end]
        gradients[stage.ipu] += sum(layer.trainable_bytes for layer in layers)
        elements[stage.ipu] += sum(layer.trainable_elements for layer in layers)
    shards = replicas if strategy.shard_optimizer else 1
    state = optimizer.bytes(max(elements)) / shards
    seconds = machine.compute_seconds(0.0, 3 * max(gradients) + 2 * state, half=False)
    seconds += machine.all_reduce_seconds(max(gradients), ipus, replicas)
    if strategy.offload_optimizer:
        seconds += machine.host_seconds(2 * optimizer.bytes(sum(elements)) / shards, ipus, replicas)
    return seconds


def _memory_problems(stages: Sequence[StagePlan], memory: MemoryModel, machine: Machine) -> List[Optional[str]]:
    problems: List[Optional[str]] = []
    for ipu in sorted({stage.ipu for stage in stages}):
        here = [(number, stage) for number, stage in enumerate(stages) if stage.ipu == ipu]
        alone = [
            checks.memory_problem(memory, stage.begin, stage.end, number, len(stages), machine, ipu)
            for number, stage in here
        ]
        problems += alone
        total = sum(stage.memory.total for _, stage in here)
        if not any(alone) and total > machine.usable_memory:
            parts = " and ".join(f"stage {number} {bytes_text(stage.memory.total)}" for number, stage in here)
            problems.append(
                f"IPU {ipu} holds {parts}, together an estimated {bytes_text(total)}, but has "
                f"{bytes_text(machine.usable_memory)} for tensors. Spread the layers over more IPUs, or recompute."
            )
    return problems
