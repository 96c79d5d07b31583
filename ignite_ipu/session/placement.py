"""Placement of one program's model on several IPUs: checked before a compile, and hooked in while it compiles."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Sequence, cast

import torch

from ignite_ipu import backend
from ignite_ipu.errors import OptionsError, PlanError, logger
from ignite_ipu.pipeline.placing.placement import Placement, Planned, save_memory
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.micro_batches import first_micro_batch
from ignite_ipu.program.options import is_simulated
from ignite_ipu.program.step import BatchStep, opened
from ignite_ipu.program.training_step import TrainingStep
from ignite_ipu.session.resolved import Resolved

if TYPE_CHECKING:
    from ignite_ipu.pipeline import Plan, Strategy


_ESTIMATED = ("pipelined", "sharded")


class Placing:
    """Placement of the layers of one program's model; its options are not changed.

    Attributes:
        placement: The placement, None while "auto" has seen no batch.
        inference: Default request of evaluators.
        plan: The plan behind it, or its estimate by the first batch; None before, and if there is neither.
    """

    def __init__(
        self,
        resolved: Resolved,
        step: BatchStep,
        optimizer: Optional[torch.optim.Optimizer] = None,
    ) -> None:
        assert resolved.pipeline is not None  # callers ask for a placement where there is one
        request = resolved.pipeline
        self.request, self.inference = request, request.for_inference()
        self.placement: Optional[Placement] = None
        self.plan: Optional[Plan] = cast("Plan", request.spec) if isinstance(request.spec, Planned) else None
        self._step: BatchStep = step
        self._resolved, self._options = resolved, resolved.options
        self._training, self._optimizer = resolved.training, optimizer
        # Tensor locations of a plan of ours, none of the user's own.
        self._memory: Optional[Strategy] = None
        if self.plan is not None and self._training:
            self._memory = self.plan.strategy
            self._refuse_other_location(self.plan.strategy)
        if request.automatic:
            self._check_limit(resolved.replicas, f"replicationFactor {resolved.replicas}")
        else:
            self.placement = request.placement(step.model)
            self._check(self.placement)

    def again(self, step: BatchStep, resolved: Resolved) -> Placing:
        """Return the placement of the model with other options."""
        return Placing(resolved, step, self._optimizer)

    @property
    def ipus(self) -> Optional[int]:
        """IPUs that all replicas take, None while that is not known."""
        return None if self.placement is None else self._resolved.ipus_for(self.placement.ipus_per_replica)

    def prepare(self, step: BatchStep, leaves: Sequence[Any]) -> None:
        """Plan, or estimate the memory of a placement, with the first batch and before the model is wrapped.

        With batches of another shape, the module that will be wrapped is another one.
        """
        self._step, placement = step, self.placement
        if placement is None:
            placement = self.placement = self._plan_from(leaves)
        elif self.request.automatic or isinstance(self.request.spec, Planned):
            pass  # the plan has it
        elif self.request.memory_per_ipu is not None:
            self.plan = self._estimate(placement, leaves)
            if self.plan.fullest > 1:
                raise PlanError("\n".join(self.plan.problems))
        elif placement.execution in _ESTIMATED:
            self._warn_of_memory(placement, leaves)

    def configure(self, options: Options) -> None:
        """Set the execution strategy of options.

        They are a copy, because a loader made from options with explicit stages cannot send them to its worker process.
        """
        assert self.placement is not None  # `prepare` has been there
        if self.request.round_up:
            options.autoRoundNumIPUs(True)
        options.setExecutionStrategy(self.placement.strategy())
        if self._memory is not None:
            save_memory(self._memory, options.replication_factor, options)

    @contextmanager
    def applied(self, step: BatchStep) -> Iterator[None]:
        """Have stages open their blocks in the model, and in front of the loss, while it compiles."""
        assert self.placement is not None
        with self.placement.apply(step.model) as applied, opened(step.stages, applied), self._alone(step):
            yield

    @contextmanager
    def _alone(self, step: BatchStep) -> Iterator[None]:
        """Refuse a model with blocks of its own, which is traced in the `with` block."""
        try:
            yield
        except AssertionError as error:
            if "Unknown Block" not in str(error):
                raise
            raise PlanError(
                f"{type(step.model).__qualname__} has annotations of its own (poptorch.Block, BeginBlock or "
                "BlockFunction), which place its layers, and so does pipeline. Remove the annotations "
                "(poptorch.removeBlocks(model) does so for BeginBlock), or leave pipeline out and set the "
                "execution strategy in options."
            ) from error

    def _check(self, placement: Placement) -> None:
        options = self._options
        if placement.loss_ipu is not None and isinstance(self._step, TrainingStep) and self._step.loss_fn is None:
            raise PlanError(
                f"The placement puts the loss on IPU {placement.loss_ipu}, but the model computes its own loss, which "
                "runs with the layers around it. Leave loss_ipu out."
            )
        self._check_depth(placement)
        pipelined = placement.execution == "pipelined" and placement.ipus_per_replica > 1
        if pipelined and self._resolved.output_mode == "EveryN":
            raise OptionsError(
                f"OutputMode.EveryN does not work with a pipeline over {placement.ipus_per_replica} IPUs. Use All, "
                'Final or Sum, or execution="sharded".'
            )
        ipus = self._resolved.ipus_for(placement.ipus_per_replica)
        product = f"{placement.ipus_per_replica} IPUs per replica x replicationFactor {options.replication_factor}"
        self._check_limit(ipus, product)
        if backend.is_emulator() or is_simulated(options) or backend.poptorch().ipuHardwareIsAvailable(ipus):
            return
        raise OptionsError(
            f"{product} takes {ipus} IPUs, and this machine has no device with so many. Use fewer stages or replicas."
        )

    def _check_depth(self, placement: Placement) -> None:
        calls = self._resolved.geometry
        problem = placement.depth_problem(self._training, calls.gradient_accumulation, calls.device_iterations)
        if problem is not None:
            raise PlanError(problem)

    def _check_limit(self, ipus: int, product: str) -> None:
        limit = self.request.ipus
        if limit is not None and ipus > limit:
            raise PlanError(
                f"{product} takes {ipus} IPUs, but ipus={limit}. Use fewer replicas, fewer stages, or raise ipus."
            )

    def _refuse_other_location(self, strategy: Strategy) -> None:
        if (strategy.offload_optimizer or strategy.shard_optimizer) and _optimizer_location(self._options):
            raise OptionsError(
                f"The plan places the optimizer's state ({strategy.name}), and so do offload=, shard= or the "
                f"options ({_optimizer_location(self._options)}). Set it in one place only."
            )

    def _plan_from(self, leaves: Sequence[Any]) -> Placement:
        from ignite_ipu.pipeline import Comparison, compare

        request, options = self.request, self._options
        comparison = compare(
            _profile(self._step, leaves, self._resolved.micro_batches, self._training, "blocks"),
            cast(int, request.ipus),  # "auto" asks for them
            **self._setting,
        )
        plan = Comparison(tuple(filter(self._is_asked_for, comparison.plans))).best
        placement = plan.placement()
        self._check(placement)
        self.plan = plan
        self._memory = plan.strategy if self._training and not _optimizer_location(options) else None
        return placement

    def _is_asked_for(self, plan: Plan) -> bool:
        execution, several = self.request.execution, plan.ipus_per_replica > 1
        if execution is not None and several and plan.strategy.pipelined != (execution == "pipelined"):
            return False
        location = _optimizer_location(self._options)
        if not location or not self._training:
            return True
        return plan.strategy.offload_optimizer == (location.get("onChip") == 0)

    def _warn_of_memory(self, placement: Placement, leaves: Sequence[Any]) -> None:
        try:
            self.plan = self._estimate(placement, leaves)
        except Exception as error:
            # Optional: a model that fails with shapes alone may still run on an IPU.
            logger.info("The memory that the pipeline needs could not be estimated: %s", error)
            return
        if self.plan.fullest > 1:
            logger.warning(
                "The pipeline may not fit: %s Compiling goes on, since this is an estimate; memory_per_ipu=%d would "
                "refuse it.",
                " ".join(self.plan.problems),
                self.request.machine.memory,
            )

    def _estimate(self, placement: Placement, leaves: Sequence[Any]) -> Plan:
        from ignite_ipu.pipeline import Strategy, plan_placement

        if placement.execution not in _ESTIMATED:
            raise PlanError(f"memory_per_ipu cannot be checked: nothing estimates {placement.execution} execution.")
        location = _optimizer_location(self._options)
        strategy = Strategy(
            placement.execution == "pipelined",
            offload_optimizer=location.get("onChip") == 0,
            shard_optimizer=bool(location.get("useReplicatedTensorSharding")),
        )
        names = placement.layers(self._step.model)
        return plan_placement(
            _profile(self._step, leaves, self._resolved.micro_batches, self._training, names),
            placement,
            strategy=strategy,
            **self._setting,
        )

    @property
    def _setting(self) -> Dict[str, Any]:
        calls = self._resolved.geometry
        return {
            "optimizer": self._optimizer or "sgd",
            "machine": self.request.machine,
            "replicas": calls.replication_factor,
            "accumulation": calls.gradient_accumulation,
            "device_iterations": calls.device_iterations,
        }


def _profile(step: BatchStep, leaves: Sequence[Any], micro_batches: int, training: bool, granularity: Any) -> Any:
    """Measure a micro-batch on the host, loss included."""
    from ignite_ipu.pipeline import measure

    first = first_micro_batch(leaves, micro_batches)
    return measure(step.model, first, granularity=granularity, training=training, call=step.run_with)


def _optimizer_location(options: Options) -> Dict[str, int]:
    """Return the options' place of the optimizer's state, empty without one."""
    locations = options.TensorLocations
    return dict(locations.location_optimizer) if locations.exists("location_optimizer") else {}


MakePlacing = Callable[[Resolved, BatchStep, Optional[torch.optim.Optimizer]], Placing]
"""A class of `Placing`."""
