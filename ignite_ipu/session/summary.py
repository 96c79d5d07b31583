"""What a session answers when it is printed: the batch arithmetic, the IPUs, the optimizer and the weights' moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from ignite_ipu import backend
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.options import output_mode

if TYPE_CHECKING:
    from ignite_ipu.session.program import Program
    from ignite_ipu.session.session import IPUSession

__all__ = ["summarise"]


def summarise(session: IPUSession) -> str:
    """Return a readable description of a session, complete before the first step if the loader is known."""
    lines = [f"IPUSession of {type(session.model).__name__} on {backend.name()}"]
    if session.training is not None:
        lines += _training(session, session.training)
    lines += [_evaluation(program) for program in session.evaluations]
    lines.append(f"  weights     {_weights(session)}")
    return "\n".join(lines)


def _training(session: IPUSession, program: Program) -> List[str]:
    options = program.options
    lines = [f"  training    {_factors(options)}"]
    lines.append(f"  batch       {session.data or _batch(program)}")
    lines.append(
        f"  outputs     {output_mode(options, training=True).name}: of every call, "
        f"{'predictions and losses' if getattr(program.step, 'predictions', True) else 'losses'} come back"
    )
    lines.append(f"  IPUs        {_ipus(session)}")
    if program.placing is not None and program.placing.placement is not None:
        lines.append(f"  layers      {program.placing.placement}")
    if session.link is not None:
        conversion = session.link.conversion
        lines.append(
            f"  optimizer   {conversion.kind.name}, variable: {', '.join(sorted(conversion.variable)) or 'nothing'}; "
            f"constant: {', '.join(sorted(conversion.constant)) or 'nothing'}"
        )
    return lines


def _evaluation(program: Program) -> str:
    return f"  evaluation  {_factors(program.options)}"


def _factors(options: Any) -> str:
    accumulation = options.Training.gradient_accumulation
    return (
        f"deviceIterations {options.device_iterations}, gradientAccumulation {accumulation}, "
        f"replicationFactor {options.replication_factor}"
    )


def _batch(program: Program) -> str:
    geometry = program.geometry
    if geometry is not None:
        return geometry.explain()
    unit = BatchGeometry.from_options(program.options, 1)
    return (
        f"b (the loader's batch_size) x {unit.global_batch_size} = {unit.global_batch_size} b samples per device call, "
        f"{unit.accumulated_batch_size} b per weight update"
    )


def _ipus(session: IPUSession) -> str:
    assert session.training is not None
    training, evaluation = session.training.ipus, [program.ipus for program in session.evaluations]
    known = [ipus for ipus in (training, *evaluation) if ipus is not None]
    if len(known) <= len(evaluation):
        return "planned from the first batch"
    if session.shares_ipus:
        return f"{max(known)}, on which training and evaluation take turns"
    if not evaluation:
        return f"{training} for training"
    return f"{training} for training and {' + '.join(map(str, evaluation))} for evaluation, at the same time"


def _weights(session: IPUSession) -> str:
    if session.training is None:
        return "uploaded once, and again when the host's change"
    turns = ", with each swap" if session.shares_ipus else ""
    return f"one copy to the host per evaluation or checkpoint after training, one to each evaluating program{turns}"
