"""Checks of a program that PopTorch has just compiled, by a call of its module on the host."""

from __future__ import annotations

from typing import Any, Sequence, Tuple

from ignite_ipu.capabilities.traced import NO_FUNCTION, VALUE_OF_WRITTEN
from ignite_ipu.errors import ForwardError, SessionError, listed, logger
from ignite_ipu.program.forward.module_attributes import ModuleAttributes
from ignite_ipu.program.guards.decisions import Decisions
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.guards.retrace import Retrace
from ignite_ipu.program.host_call import HostCall
from ignite_ipu.program.traced_places import refusal_at
from ignite_ipu.session.compiled_program import HostTrace
from ignite_ipu.session.program_source import ProgramSource
from ignite_ipu.session.side_effects import refuse_own_buffers
from ignite_ipu.session.weights.batch_counters import counted_by_norms

_AVERAGED = (
    "The loss is a sum over samples, and an update averages the gradients of its %s = %d micro-batches, as Ignite's "
    "trainer does over its accumulation steps: it is 1/%d of the update by the sum over all its samples. For that one, "
    "pass options with Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)."
)


def traced_on_host(source: ProgramSource, leaves: Sequence[Any], before: Decisions) -> Tuple[PythonState, HostTrace]:
    """Return the Python values that a module reads, and the results of a call of it on the host.

    Args:
        source: The parts of a program.
        leaves: Arguments of the device call that it was compiled for.
        before: The values that its code read before it was compiled.
    """
    step, resolved = source.step, source.resolved
    call = HostCall(step, leaves, resolved.micro_batches)
    retrace = Retrace(call, step.python_state)
    # Imports of the trace, for example, were absent before.
    python, kept = before.state if before.are_current else step.python_state(), ModuleAttributes(step)
    trace = HostTrace(retrace, counted_by_norms(step))
    try:
        varying = retrace.begin(python, step.is_tried, step.leaves_behind, source.effects.first_operations())
        writes = bool(call.written or step.computed.places) or step.written.updates_statistics(step)
        trace = HostTrace(retrace, call.counted, call.written, varying, call.shapes, writes)
        if resolved.training:
            _report_averaged_sums(source, leaves)
    except SessionError:
        raise
    except Exception as error:
        logger.info("%s cannot be called on the host: %s", type(step.model).__qualname__, error)
    finally:
        kept.put_back(always=True)
    return python, trace


def check_compiled(source: ProgramSource, trace: HostTrace, own_statistics: bool) -> None:
    """Refuse a program whose results would differ from the module's; `own_statistics` as of `Wrapped`."""
    if own_statistics:
        _check_own_statistics(source.resolved.replicas, trace.written)
    # The program has the value of the trace.
    read = source.step.shown.read
    names = sorted(read.keys() & {*trace.written, *source.step.written.names})
    if names:
        detail = f"of the buffer {listed(names)}, which forward writes"
        raise ForwardError(refusal_at(VALUE_OF_WRITTEN, read[names[0]].place, NO_FUNCTION, detail))


def _check_own_statistics(replicas: int, written: Sequence[str]) -> None:
    refuse_own_buffers(written, replicas)
    logger.info(
        "Each of the %d replicas has normalisation statistics of its own (broadcastBuffers(False)); those of the "
        "first come back, as from DistributedDataParallel.",
        replicas,
    )


def _report_averaged_sums(source: ProgramSource, leaves: Sequence[Any]) -> None:
    training, calls = source.resolved.options.Training, source.resolved.geometry
    count = calls.gradient_accumulation * calls.replication_factor
    averaged = count > 1 and training.accumulation_and_replication_reduction_type.name == "Mean"
    if averaged and source.step.adds_up(leaves, source.resolved.micro_batches):
        factors = f"gradientAccumulation {calls.gradient_accumulation} x replicationFactor {calls.replication_factor}"
        logger.warning(_AVERAGED, factors, count, count)
