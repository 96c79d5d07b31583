"""A plan written into PopTorch options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ignite_ipu import backend
from ignite_ipu.pipeline.placing.placement import Planned
from ignite_ipu.poptorch_types import Options

if TYPE_CHECKING:
    from ignite_ipu.pipeline.costs.memory import Strategy

_RECOMPUTE_PIPELINE = 3
"""PopART's `RecomputationType.Pipeline`, as a number because PopTorch's options take no PopART enumerators."""


def configure(plan: Planned, options: Options) -> Options:
    """Set strategy, batching factors, replicas and tensor locations of `options` as the plan says, and return them.

    Args:
        plan: A plan that fits.
        options: Unfrozen `poptorch.Options`; training plans are for training options.

    Raises:
        PlanError: The plan has problems.
    """
    options.setExecutionStrategy(plan.placement().strategy())
    factors = plan.factors()
    options.deviceIterations(factors["device_iterations"])
    options.replicationFactor(factors["replication_factor"])
    if plan.training:
        options.Training.gradientAccumulation(factors["gradient_accumulation_steps"])
        save_memory(plan.strategy, plan.replicas, options)
    return options


def save_memory(strategy: Strategy, replicas: int, options: Options) -> None:
    """Set what a strategy of training says about the optimizer's state and about recomputation."""
    shard = strategy.shard_optimizer and replicas > 1
    if strategy.offload_optimizer or shard:
        settings = backend.poptorch().TensorLocationSettings()
        if strategy.offload_optimizer:
            settings.useOnChipStorage(False)
        if shard:
            settings.useReplicatedTensorSharding(True)
        options.TensorLocations.setOptimizerLocation(settings)
    if strategy.recompute:
        options._Popart.set("autoRecomputation", _RECOMPUTE_PIPELINE)
