"""Description of a session: the batch arithmetic, the IPUs, the optimizer and the weights' moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional

from torch import nn

from ignite_ipu import backend
from ignite_ipu.optimizers.host_link import HostUpdates
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.programs import Programs
from ignite_ipu.session.returned_gradients import host_update_cost
from ignite_ipu.session.training import Trained

if TYPE_CHECKING:
    from ignite_ipu.pipeline import Placement
    from ignite_ipu.session.placement import Placing

_AGAIN = (
    "at first use; again when parameters are frozen or unfrozen, and when modules, modes, Python values or whole "
    "numbers in buffers change; for up to %d shapes of batches"
)


def summarise(model: nn.Module, programs: Programs, data: Optional[str]) -> str:
    """Return a readable description of a session, complete before the first step if the trainer's `data` is known."""
    lines = [f"IPUSession of {type(model).__name__} on {backend.name()}"]
    trained = programs.trainers.current
    if trained is not None:
        lines += _training(trained, programs, data)
    lines += [f"  evaluation  {program.resolved.geometry.factors(', ')}" for program in programs.evaluations]
    lines.append(f"  weights     {_weights(programs)}")
    lines.append(f"  compiled    {_AGAIN % programs.most_shapes}")
    if programs.hooks.fired[IPUEvents.COMPILE_COMPLETED]:
        lines.append(f"  so far      {_so_far(programs)}")
    return "\n".join(lines)


def _training(trained: Trained, programs: Programs, data: Optional[str]) -> List[str]:
    program, conversion = trained.program, trained.link.conversion
    lines = [
        f"  training    {program.resolved.geometry.factors(', ')}",
        f"  batch       {data or _batch(program)}",
        f"  outputs     {program.resolved.output_mode}: of every call, "
        f"{'predictions and losses' if getattr(program.step, 'predictions', True) else 'losses'} come back",
        f"  IPUs        {_ipus(program, programs)}",
    ]
    if program.placing is not None and program.placing.placement is not None:
        lines += _pipeline(program.placing, program.placing.placement, program.resolved.geometry)
    if isinstance(conversion, HostUpdates):
        lines.append(f"  optimizer   {_host_updates(conversion, program)}")
    else:
        lines.append(
            f"  optimizer   {conversion.kind.name}, variable: {', '.join(sorted(conversion.variable)) or 'nothing'}; "
            f"constant, and refused when changed: {', '.join(sorted(conversion.constant)) or 'nothing'}"
        )
    return lines


def _host_updates(updates: HostUpdates, program: ModelProgram) -> str:
    """Return the place and the cost of updates."""
    made_by = "PyTorch" if updates.source is None else f"PyTorch's {type(updates.source).__name__}"
    return f"{made_by}, on the host: {host_update_cost(program)}"


def _pipeline(placing: Placing, placement: Placement, calls: BatchGeometry) -> List[str]:
    """Return the places of layers, the order of stages, and planned or estimated times and memory."""
    from ignite_ipu.pipeline.units import bytes_text

    stages, plan, micro_batches = placement.stages, placing.plan, calls.gradient_accumulation
    schedule = f"{stages} stages, {placement.execution}"
    if placement.execution == "pipelined" and stages > 1:
        slots = micro_batches + stages - 1
        schedule += (
            f": {micro_batches} micro-batches per weight update take {slots} slots, {(stages - 1) / slots:.0%} of them "
            "to fill and drain"
        )
    lines = [f"  layers      {placement}", f"  schedule    {schedule}"]
    if plan is not None:
        factors = calls.device_iterations, calls.gradient_accumulation, calls.replication_factor
        if (plan.device_iterations, plan.accumulation, plan.replicas) == factors:
            lines[1] += f"; estimated {plan.throughput:,.0f} samples/s, bubble {plan.iteration.bubble:.0%}"
        held = ", ".join(bytes_text(memory.total) for memory in plan.memory_per_ipu)
        usable = bytes_text(plan.machine.usable_memory)
        lines.append(f"  memory      {held} by IPU of a replica, estimated: at most {plan.fullest:.0%} of {usable}")
    return lines


def _so_far(programs: Programs) -> str:
    fired, trained = programs.hooks.fired, programs.trainers.current
    parts = [f"{fired[IPUEvents.COMPILE_COMPLETED]} compilations"]
    if trained is not None:
        parts.append(f"{programs.weights.updates[0]} training calls, {trained.link.steps} updates of the optimizer")
    parts.append(
        f"copies of the weights: {fired[IPUEvents.WEIGHTS_TO_HOST]} to the host, "
        f"{fired[IPUEvents.WEIGHTS_TO_DEVICE]} to devices"
    )
    return "; ".join(parts)


def _batch(program: ModelProgram) -> str:
    geometry = program.geometry
    if geometry is not None:
        return geometry.explain()
    unit = program.resolved.geometry
    of_each = f" of each of {unit.processes} processes" if unit.processes > 1 else ""
    return (
        f"b (the loader's batch_size) x {unit.global_batch_size} = {unit.global_batch_size} b samples per device call"
        f"{of_each}, {unit.update_batch_size} b per weight update"
    )


def _ipus(trained: ModelProgram, programs: Programs) -> str:
    training, evaluation = trained.ipus, [program.ipus for program in programs.evaluations]
    known = [ipus for ipus in (training, *evaluation) if ipus is not None]
    if len(known) <= len(evaluation):
        return "planned from the first batch"
    if programs.share_ipus:
        text = f"{max(known)}, on which training and evaluation take turns"
    elif not evaluation:
        text = f"{training} for training"
    else:
        text = f"{training} for training and {' + '.join(map(str, evaluation))} for evaluation, at the same time"
    # Only PopTorch has the names of blocks in a forward.
    return (
        text if trained.placing is not None else f"{text}; those that poptorch.Blocks in the model name are not counted"
    )


def _weights(programs: Programs) -> str:
    if programs.trainers.current is None:
        return "uploaded once, and again when the host's change"
    turns = ", with each swap" if programs.share_ipus else ""
    return f"one copy to the host per evaluation or checkpoint after training, one to each evaluating program{turns}"
