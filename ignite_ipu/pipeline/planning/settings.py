"""Gradient accumulation and device iterations, proposed with their reasons."""

from __future__ import annotations

from math import ceil
from typing import Tuple

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.profiling.profile import Profile
from ignite_ipu.pipeline.units import seconds_text

_FILL_SHARE = 0.1
"""Share of a step that filling, draining and updating may take before more micro-batches are proposed."""

_MOST_ACCUMULATION = 64
"""Beyond this, or a pipeline's minimum, no accumulation is proposed: the global batch is the user's to enlarge."""

_CALL_SHARE = 0.05
"""Share of a call that the host's part may take before more device iterations are proposed."""


def accumulation_for(profile: Profile, global_batch: int, replicas: int) -> int:
    """Return the accumulation that gives a global batch.

    Raises:
        PlanError: The replicas' micro-batches do not divide it.
    """
    rows = profile.samples * replicas
    if global_batch < rows or global_batch % rows:
        raise PlanError(
            f"A global batch of {global_batch} is no multiple of {profile.samples} samples per micro-batch * "
            f"{replicas} replicas = {rows}. Use {max(rows, global_batch // rows * rows)}, or fewer replicas."
        )
    return global_batch // rows


def propose_accumulation(depth: int, fill: float, update: float, period: float) -> Tuple[int, str]:
    """Return an accumulation that keeps fill, drain and update at a tenth of a step, at most 64, and the reason.

    Args:
        depth: Stages of the pipeline, 1 where nothing fills.
        fill: Time of a step beyond its micro-batches' steady time.
        update: Time of the weight update.
        period: Time per micro-batch in the steady state.
    """
    least = max(1, 2 * depth - 1) if depth > 1 else 1
    wanted = ceil((fill + update) * (1 - _FILL_SHARE) / (_FILL_SHARE * period)) if period else least
    chosen = max(least, min(wanted, _MOST_ACCUMULATION))
    share = (fill + update) / (fill + update + chosen * period) if chosen * period else 0.0
    rule = f"PopTorch asks for at least 2 * {depth} - 1 = {least}" if depth > 1 else "no pipeline sets a minimum"
    return chosen, (
        f"accumulation {chosen}: {rule}; filling and draining take {seconds_text(fill)} and the update "
        f"{seconds_text(update)}, which is {share:.0%} of a step with {chosen} micro-batches of {seconds_text(period)}"
    )


def propose_training_iterations(step: float, machine: Machine) -> Tuple[int, str]:
    """Return device iterations that keep the host's part of a training call small, and the reason."""
    overhead = machine.call_overhead
    chosen = max(1, ceil(overhead * (1 - _CALL_SHARE) / (_CALL_SHARE * step)))
    return chosen, (
        f"device iterations {chosen}: the host spends {seconds_text(overhead)} around each call, {chosen} steps of "
        f"{seconds_text(step)} keep that at {overhead / (overhead + chosen * step):.0%}"
    )


def propose_inference_iterations(depth: int, fill: float, period: float, machine: Machine) -> Tuple[int, str]:
    """Return device iterations that keep filling and the host's part of an inference call small, and the reason."""
    overhead = fill + machine.call_overhead
    chosen = max(depth, ceil(overhead * (1 - _FILL_SHARE) / (_FILL_SHARE * period)))
    rule = f"PopTorch asks for at least {depth}, one per stage" if depth > 1 else "no pipeline sets a minimum"
    return chosen, (
        f"device iterations {chosen}: {rule}; filling takes {seconds_text(fill)} and the host "
        f"{seconds_text(machine.call_overhead)}, which is {overhead / (overhead + chosen * period):.0%} of a call "
        f"with {chosen} micro-batches of {seconds_text(period)}"
    )
