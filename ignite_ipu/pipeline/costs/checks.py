"""Checks of a plan before anything compiles: each returns a sentence, or None."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional, Sequence

from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.stages import MemoryModel
from ignite_ipu.pipeline.profiling.profile import Profile
from ignite_ipu.pipeline.units import bytes_text


def accumulation_problem(stages: int, accumulation: int) -> Optional[str]:
    """Check gradient accumulation against the depth of a training pipeline."""
    depth = 2 * stages - 1
    if stages == 1 or accumulation >= depth:
        return None
    return (
        f"Gradient accumulation is {accumulation}, but a training pipeline of {stages} stages passes every "
        f"micro-batch through {stages} forward and {stages} backward stages, the last two as one: it needs at least 2 "
        f"* {stages} - 1 = {depth}. Set the gradient accumulation to {depth} or more, or use fewer stages."
    )


def device_iterations_problem(stages: int, device_iterations: int) -> Optional[str]:
    """Check device iterations against the depth of an inference pipeline."""
    if stages == 1 or device_iterations >= stages:
        return None
    return (
        f"Device iterations are {device_iterations}, but an inference pipeline of {stages} stages needs at least "
        f"{stages} micro-batches per call. Set the device iterations to {stages} or more, or use fewer stages."
    )


def replication_problem(ipus_per_replica: int, replicas: int, available: int, machine: Machine) -> Optional[str]:
    """Check the number of IPUs that a run requests."""
    wanted = ipus_per_replica * replicas
    arithmetic = f"{ipus_per_replica} IPUs per replica * {replicas} replicas = {wanted} IPUs"
    if wanted > available:
        fitting = available // ipus_per_replica
        way_out = f"Use at most {_power_below(fitting)} replicas" if fitting else "Use fewer IPUs per replica"
        return f"{arithmetic}, but {available} are available. {way_out}, or more IPUs."
    if wanted & (wanted - 1):
        return (
            f"{arithmetic}, but PopTorch attaches to a power of two. Use {_power_below(wanted)} or "
            f"{2 * _power_below(wanted)} IPUs in all, or let poptorch.Options.autoRoundNumIPUs(True) leave some idle."
        )
    if ipus_per_replica > machine.ipus_per_process:
        return (
            f"A replica of {ipus_per_replica} IPUs does not fit one process, which may request "
            f"{machine.ipus_per_process}. Use at most {machine.ipus_per_process} IPUs per replica."
        )
    return None


def process_note(ipus: int, machine: Machine) -> Optional[str]:
    """Return a finding with the number of processes that a run needs, if it needs several."""
    if ipus <= machine.ipus_per_process:
        return None
    processes = -(-ipus // machine.ipus_per_process)
    return (
        f"{ipus} IPUs need {processes} processes of at most {machine.ipus_per_process} IPUs each "
        "(poptorch.Options.Distributed), every one with its share of the replicas."
    )


def shared_weight_problems(profile: Profile, ipus: Sequence[int]) -> List[str]:
    """Check that all layers which use a weight are on one IPU; `ipus` has the IPU of each layer."""
    problems = []
    for weight in profile.shared:
        places = sorted({ipus[i] for i in weight.layers})
        if len(places) > 1:
            users = ", ".join(f"{profile.layers[i].name} on IPU {ipus[i]}" for i in weight.layers)
            problems.append(
                f"Weight {weight.name} ({bytes_text(weight.bytes)}) is shared by layers on different IPUs: {users}. "
                f"Layers that share a weight must be on one IPU: put them all on IPU {places[0]}, for the last ones "
                "as a stage of its own."
            )
    return problems


def memory_problem(
    memory: MemoryModel, begin: int, end: int, stage: int, stages: int, machine: Machine, ipu: int
) -> Optional[str]:
    """Check one stage's estimated memory; the error names its biggest tensors and the ways out."""
    need = memory.stage(begin, end, stage, stages)
    if need.total <= machine.usable_memory:
        return None
    layers = memory.profile.layers[begin:end]
    span = layers[0].name if len(layers) == 1 else f"{layers[0].name} to {layers[-1].name}"
    tensors = ", ".join(f"{t.name} {bytes_text(t.bytes)}" for t in memory.biggest(begin, end, stage, stages))
    return (
        f"Stage {stage} (IPU {ipu}, {span}) needs an estimated {bytes_text(need.total)}, "
        f"but one IPU has {bytes_text(machine.usable_memory)} for tensors ({machine.usable_fraction:.0%} of "
        f"{bytes_text(machine.memory)}): weights {bytes_text(need.weights)}, gradients {bytes_text(need.gradients)}, "
        f"optimizer {bytes_text(need.optimizer)}, activations {bytes_text(need.activations)}, working space "
        f"{bytes_text(need.working)}. Biggest tensors: {tensors}. {_remedies(memory, begin, end, stage, stages)}"
    )


def _remedies(memory: MemoryModel, begin: int, end: int, stage: int, stages: int) -> str:
    need = memory.stage(begin, end, stage, stages).total
    savings = []
    for words, choice in {"recomputation": "recompute", "optimizer state off chip": "offload_optimizer"}.items():
        strategy = replace(memory.strategy, **{choice: True})
        other = MemoryModel(memory.profile, memory.optimizer, strategy, memory.replicas)
        saved = need - other.stage(begin, end, stage, stages).total
        if memory.profile.training and saved > 0.01 * need:
            savings.append(f"{words} would save {bytes_text(saved)}")
    savings.append("more IPUs, a smaller micro-batch or half precision would help")
    text = "; ".join(savings)
    return f"{text[0].upper()}{text[1:]}."


def _power_below(count: int) -> int:
    return 1 << (count.bit_length() - 1)
