"""A plan written into PopTorch options."""

from __future__ import annotations

from typing import Any

from ignite_ipu import backend

from .plan import Plan

_RECOMPUTE_PIPELINE = 3
"""PopART's `RecomputationType.Pipeline`, as a number because PopTorch's options take no PopART enumerators."""


def configure(plan: Plan, options: Any) -> Any:
    """Set strategy, batching factors, replicas and tensor locations of `options` as the plan says, and return them.

    Args:
        plan: A plan that fits.
        options: Unfrozen `poptorch.Options`; training plans are for training options.

    Raises:
        PlanError: The plan has problems.
    """
    poptorch = backend.poptorch()
    options.setExecutionStrategy(plan.placement().strategy())
    options.deviceIterations(plan.device_iterations)
    options.replicationFactor(plan.replicas)
    if not plan.profile.training:
        return options
    options.Training.gradientAccumulation(plan.accumulation)
    if plan.strategy.offload_optimizer or (plan.strategy.shard_optimizer and plan.replicas > 1):
        settings = poptorch.TensorLocationSettings()
        if plan.strategy.offload_optimizer:
            settings.useOnChipStorage(False)
        if plan.strategy.shard_optimizer and plan.replicas > 1:
            settings.useReplicatedTensorSharding(True)
        options.TensorLocations.setOptimizerLocation(settings)
    if plan.strategy.recompute:
        options._Popart.set("autoRecomputation", _RECOMPUTE_PIPELINE)
    return options
