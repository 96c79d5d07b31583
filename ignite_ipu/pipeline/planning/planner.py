"""One strategy on a given number of IPUs, planned in full."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Union

from torch.optim import Optimizer

from ignite_ipu.pipeline.costs.checks import (
    accumulation_problem,
    device_iterations_problem,
    memory_problem,
    process_note,
    replication_problem,
    shared_weight_problems,
)
from ignite_ipu.pipeline.costs.machine import MK2, Machine
from ignite_ipu.pipeline.costs.memory import MemoryModel, StageMemory, Strategy
from ignite_ipu.pipeline.costs.optimizer_state import OptimizerState, optimizer_state
from ignite_ipu.pipeline.costs.schedule import simulate
from ignite_ipu.pipeline.costs.timing import TimeModel
from ignite_ipu.pipeline.placing.placement import Placement
from ignite_ipu.pipeline.planning.plan import Plan, StagePlan
from ignite_ipu.pipeline.planning.settings import (
    accumulation_for,
    propose_accumulation,
    propose_inference_iterations,
    propose_training_iterations,
)
from ignite_ipu.pipeline.planning.staging import best_stages, given_stages
from ignite_ipu.pipeline.profiling.profile import Profile
from ignite_ipu.pipeline.units import bytes_text


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
        profile: The measured model.
        ipus_per_replica: IPUs for one copy of the model.
        replicas: Data-parallel copies.
        available: IPUs there are; just enough by default.
        strategy: The strategy; pipelined, with everything on chip, by default.
        optimizer: The optimizer that trains, or its name.
        machine: What the IPUs are like.
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
        stages = best_stages(profile, ipus_per_replica, memory, time, machine)
    else:
        stages = given_stages(profile, sizes, stage_ipus, memory, time)
    update = update_seconds(profile, stages, strategy, state, machine, replicas)
    times, places = [stage.time for stage in stages], [stage.ipu for stage in stages]
    depth = len(stages) if strategy.pipelined else 1
    count = 4 * len(stages)
    probe = simulate(times, count, training=profile.training, pipelined=strategy.pipelined, ipus=places)
    fill = max(0.0, probe.makespan - count * probe.period)
    reasons: List[str] = []
    if not profile.training:
        accumulation = 1
        if device_iterations is None:
            device_iterations, reason = propose_inference_iterations(depth, fill, probe.period, machine)
            reasons.append(reason)
    else:
        if global_batch is not None:
            accumulation = accumulation_for(profile, global_batch, replicas)
            reasons.append(f"accumulation {accumulation}: gives the global batch of {global_batch}")
        elif accumulation is None:
            accumulation, reason = propose_accumulation(depth, fill, update, probe.period)
            reasons.append(reason)
        if device_iterations is None:
            device_iterations, reason = propose_training_iterations(
                fill + accumulation * probe.period + update, machine
            )
            reasons.append(reason)
    note = process_note(ipus_per_replica * replicas, machine)
    iteration = simulate(
        times,
        accumulation if profile.training else device_iterations,
        training=profile.training,
        pipelined=strategy.pipelined,
        ipus=places,
        update=update,
    )
    problems = [
        replication_problem(ipus_per_replica, replicas, available or ipus_per_replica * replicas, machine),
        accumulation_problem(depth, accumulation)
        if profile.training
        else device_iterations_problem(depth, device_iterations),
        *shared_weight_problems(profile, [stage.ipu for stage in stages for _ in stage.layers]),
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
        iteration=iteration,
        problems=tuple(problem for problem in problems if problem),
        reasons=tuple([*reasons, note] if note else reasons),
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


def update_seconds(
    profile: Profile,
    stages: Sequence[StagePlan],
    strategy: Strategy,
    optimizer: OptimizerState,
    machine: Machine,
    replicas: int,
) -> float:
    """Estimate the weight update: all-reduce of gradients, state from and to off-chip memory, and the arithmetic.

    The arithmetic is priced as the bytes it touches; off-chip state crosses the host link twice, its replicated shards
    once per replica together.
    """
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
            memory_problem(memory, stage.begin, stage.end, number, len(stages), machine, ipu) for number, stage in here
        ]
        problems += alone
        total = sum((stage.memory for _, stage in here), StageMemory()).total
        if not any(alone) and total > machine.usable_memory:
            parts = " and ".join(f"stage {number} {bytes_text(stage.memory.total)}" for number, stage in here)
            problems.append(
                f"IPU {ipu} holds {parts}, together an estimated {bytes_text(total)}, but has "
                f"{bytes_text(machine.usable_memory)} for tensors. Spread the layers over more IPUs, or recompute."
            )
    return problems
