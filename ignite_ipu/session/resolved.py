"""`Resolved`: the options of programs, with the arithmetic of their calls, the output mode and the IPUs."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

import torch
from torch import nn

from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import OF_PIPELINES, IPUConfig
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.micro_batches import select
from ignite_ipu.program.options import check_ipus, output_mode, own_options, set_replicas, training_options
from ignite_ipu.session.processes import describe_processes, train_alone

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest


def resolve(config: IPUConfig, model: nn.Module) -> Resolved:
    """Resolve the settings of a trainer; those of evaluators are resolved by `Inference.resolved`.

    Raises:
        OptionsError: Settings contradict the options, or no IPUs can be had for them.
        PlanError: The pipeline does not suit the model.
        ProcessesError: Several processes would not train one model together.
    """
    request = pipeline_request(config)
    config = with_plan(config, request, training=True)
    ipus_per_replica = None if request is None else request.ipus_per_replica(model)
    return Resolved.for_training(training_options(config, ipus_per_replica=ipus_per_replica), request)


def pipeline_request(config: IPUConfig) -> Optional[PipelineRequest]:
    """Return the pipeline that a configuration requests, or None; a plan's file is read.

    The pipeline's modules are imported only if there is one.

    Raises:
        PlanError: As of `PipelineRequest.of` and `load_plan`.
        OSError: The plan's file cannot be read.
    """
    if all(getattr(config, name) is None for name in OF_PIPELINES):
        return None
    from ignite_ipu.pipeline.placing.request import PipelineRequest

    if isinstance(config.pipeline, str) and config.pipeline.endswith(".json"):
        from ignite_ipu.pipeline import load_plan

        config = dataclasses.replace(config, pipeline=load_plan(config.pipeline))
    return PipelineRequest.of(config)


def with_plan(config: IPUConfig, request: Optional[PipelineRequest], training: bool) -> IPUConfig:
    """Return the settings with a plan's batching factors, where neither they nor their options say one."""
    if request is None:
        return config
    planned = request.factors(training).items()
    own = own_options(config)
    said = {
        "device_iterations": own.device_iterations,
        "gradient_accumulation_steps": own.Training.gradient_accumulation,
        "replication_factor": own.replication_factor,
    }
    free: Dict[str, Any] = {name: value for name, value in planned if getattr(config, name) is None and said[name] == 1}
    return dataclasses.replace(config, **free)


@dataclasses.dataclass(frozen=True, eq=False)
class Resolved:
    """Options for training or for inference, resolved once and handed down to the programs that use them.

    Attributes:
        options: The `poptorch.Options`.
        training: Whether programs with these options train.
        geometry: The arithmetic of a call with micro-batches of one sample.
        output_mode: Name of the output mode, as PopTorch resolves it.
        ipus: IPUs that all replicas of a model take that is on one IPU, or has annotations of its own.
        pipeline: The placement on several IPUs, None without one.
    """

    options: Options
    training: bool
    geometry: BatchGeometry
    output_mode: str
    ipus: int
    pipeline: Optional[PipelineRequest] = None

    @classmethod
    def of(cls, options: Options, training: bool, pipeline: Optional[PipelineRequest] = None) -> Resolved:
        """Resolve options.

        Raises:
            OptionsError: No IPUs can be had for them.
        """
        mode: str = output_mode(options, training).name
        return cls(options, training, BatchGeometry.from_options(options, 1), mode, check_ipus(options), pipeline)

    @classmethod
    def for_training(
        cls, options: Options, pipeline: Optional[PipelineRequest] = None, alone: bool = False
    ) -> Resolved:
        """Resolve options to train with, after they are made to describe the processes that train together.

        Args:
            options: The options, which are changed.
            pipeline: The placement on several IPUs.
            alone: Whether the gradients are of this process alone, also if others are connected.

        Raises:
            OptionsError: No IPUs can be had for them.
            ProcessesError: Several processes would not train one model together.
        """
        (train_alone if alone else describe_processes)(options)
        return cls.of(options, True, pipeline)

    @property
    def replicas(self) -> int:
        return self.geometry.replication_factor

    def changed(self, change: Callable[[Options], Any]) -> Resolved:
        """Return the same with options that were changed by a function, in a copy.

        Raises:
            OptionsError: No IPUs can be had for the changed options.
        """
        return Resolved.of(self.copied(change), self.training, self.pipeline)

    def copied(self, change: Callable[[Options], Any]) -> Options:
        """Return a copy of the options, changed by a function."""
        options = self.options.clone()
        change(options)
        return options

    def with_factors(self, calls: BatchGeometry) -> Resolved:
        """Return the same for calls with other factors."""

        def change(options: Options) -> None:
            options.deviceIterations(calls.device_iterations)
            options.Training.gradientAccumulation(calls.gradient_accumulation)
            set_replicas(options, calls.replication_factor)

        return self.changed(change)

    def ipus_for(self, ipus_per_replica: int) -> int:
        """Return how many IPUs all replicas of a model take that is spread over some.

        Raises:
            OptionsError: They cannot be had.
        """
        return check_ipus(self.options, ipus_per_replica, self.pipeline is not None and self.pipeline.round_up)

    @functools.cached_property
    def micro_batches(self) -> int:
        """Micro-batches in the inputs of one call."""
        return self.geometry.input_micro_batches

    @property
    def micro_batches_per_replica(self) -> int:
        """Forward passes of one replica in one call."""
        return self.geometry.device_iterations * self.geometry.gradient_accumulation

    @property
    def own_buffers(self) -> bool:
        """True if replicas may be given buffers of their own: they share them, and read different samples."""
        return self.options.broadcast_buffers and self.geometry.input_group_size < self.replicas

    @functools.cached_property
    def returned_positions(self) -> Optional[List[int]]:
        """Positions of the micro-batches whose outputs come back, None for all in order."""
        positions = self.geometry.returned_micro_batches(self.output_mode, self.options.output_return_period)
        return None if positions == list(range(self.micro_batches)) else positions

    def returned(self, batch: Any) -> Any:
        """Return those micro-batches of inputs and targets to which the outputs belong that come back."""
        positions = self.returned_positions
        return batch if positions is None else select(batch, positions, self.micro_batches)

    def mean_loss(self, loss: torch.Tensor, maximizes: bool) -> torch.Tensor:
        """Return the mean over the micro-batches whose losses came back; `maximizes` if the losses are negated."""
        mean = loss.mean() if loss.dim() else loss
        mean = -mean if maximizes else mean
        # A sum is over the micro-batches of one replica.
        return mean / self.micro_batches_per_replica if self.output_mode == "Sum" else mean
