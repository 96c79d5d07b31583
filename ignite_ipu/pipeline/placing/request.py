"""Request to an engine about the IPUs of its model: a description, or "auto" and how many IPUs there are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

from torch import nn

from ignite_ipu.errors import PlanError, did_you_mean
from ignite_ipu.pipeline.costs.machine import MK2, Machine
from ignite_ipu.pipeline.placing.placement import Entry, Placement, Planned
from ignite_ipu.program.config import EXECUTIONS, IPUConfig

Pipeline = Union[Sequence[Entry], Mapping[Union[str, int], int], Planned, Placement, str]
"""Arguments of the factories called `pipeline`: whatever `Placement.of` understands, or "auto"."""


@dataclass(frozen=True)
class PipelineRequest:
    """The pipeline arguments of one engine; `PipelineRequest.of` checks them.

    Args:
        spec: A description, a plan, a placement, or "auto".
        execution: One of `EXECUTIONS`; None for that of the plan or placement, or pipelined.
        ipus: IPUs there are for all replicas; None for as many as it takes.
        memory_per_ipu: Bytes of one IPU to hold the estimates to; None for a Mk2's, which a described pipeline may
            exceed with a warning.
        round_up: Whether IPUs may be left idle where the number is no power of two.
        shared: The numbers of the IPUs among those that several models share; by their numbers in the placement.
    """

    spec: Union[Tuple[Entry, ...], Mapping[Union[str, int], int], Planned, Placement, str]
    execution: Optional[str] = None
    ipus: Optional[int] = None
    memory_per_ipu: Optional[int] = None
    round_up: bool = False
    shared: Tuple[int, ...] = ()

    @classmethod
    def of(cls, config: IPUConfig) -> Optional[PipelineRequest]:
        """Return the request of a configuration, or None if it has none.

        Raises:
            PlanError: Settings without `pipeline`, "auto" without `ipus`, an unknown execution, or one that the plan
                or placement contradicts.
        """
        spec, execution, ipus, memory_per_ipu = config.pipeline, config.execution, config.ipus, config.memory_per_ipu
        others: Dict[str, Any] = {"execution": execution, "ipus": ipus, "memory_per_ipu": memory_per_ipu}
        if spec is None:
            for name, value in others.items():
                if value is not None:
                    raise PlanError(f'{name}={value!r} says nothing without pipeline=; pass pipeline="auto" or layers.')
            return None
        for name in ("ipus", "memory_per_ipu"):
            number = others[name]
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise PlanError(f"{name} is {number!r}; it must be a number of at least 1.")
        if execution is not None and execution not in EXECUTIONS:
            raise PlanError(f"Execution is {execution!r}.{did_you_mean(str(execution), EXECUTIONS)}")
        if isinstance(spec, str):
            if spec != "auto":
                raise PlanError(f'pipeline is {spec!r}; the only word it knows is "auto". Pass a list of layer names.')
            if ipus is None:
                raise PlanError('pipeline="auto" needs a number of IPUs: pass ipus=4, for example.')
            if execution not in (None, "pipelined", "sharded"):
                raise PlanError(
                    f'pipeline="auto" plans pipelined and sharded execution, not {execution}. List the layers at which '
                    "its phases begin."
                )
            return cls(spec, execution, ipus, memory_per_ipu)
        if isinstance(spec, (Planned, Placement)):
            if execution not in (None, spec.execution):
                kind = type(spec).__name__.lower()
                raise PlanError(f"The {kind} is {spec.execution}, but execution={execution!r}. Say one.")
            return cls(spec, spec.execution, ipus, memory_per_ipu)
        if isinstance(spec, Mapping):
            return cls(dict(spec), execution, ipus, memory_per_ipu)
        if not isinstance(spec, Sequence):
            raise PlanError(
                f"pipeline is {spec!r}; it must be a list of layers, a list of layers per IPU, a mapping of layers to "
                'IPUs, "auto", a Plan or a Placement.'
            )
        return cls(tuple(spec), execution, ipus, memory_per_ipu)

    @property
    def automatic(self) -> bool:
        """True where the placement has to be planned from a batch."""
        return self.spec == "auto"

    @property
    def machine(self) -> Machine:
        """Machine that estimates are held to."""
        return MK2 if self.memory_per_ipu is None else replace(MK2, memory=self.memory_per_ipu)

    def placement(self, model: nn.Module) -> Placement:
        """Return the placement of a model that was described.

        Raises:
            PlanError: It does not suit the model.
        """
        if isinstance(self.spec, str):
            raise PlanError('pipeline="auto" has no placement before the first batch.')
        return Placement.of(model, self.spec, execution=self.execution or "pipelined")

    def ipus_per_replica(self, model: nn.Module) -> Optional[int]:
        """Return how many IPUs one copy of the model takes at least; None while "auto" has seen no batch."""
        return None if self.automatic else self.placement(model).ipus_per_replica

    def factors(self, training: bool) -> Dict[str, int]:
        """Return the batching factors that a plan proposes; none for another description.

        Raises:
            PlanError: The plan is for training and this is not, or the other way round.
        """
        if not isinstance(self.spec, Planned):
            return {}
        if self.spec.training != training:
            kinds = ("training", "inference") if training else ("inference", "training")
            raise PlanError(
                f"The plan is for {kinds[1]}, but this is {kinds[0]}. Plan measure(..., training={training}) for it."
            )
        return self.spec.factors()

    def for_model(self, model: nn.Module) -> Optional[PipelineRequest]:
        """Return the request of one of several models, which a mapping of the names of their classes describes.

        Of another description every model has the same; None for a model that the mapping leaves out.

        Raises:
            PlanError: The model's description is none.
        """
        if not isinstance(self.spec, Mapping):
            return self
        name = type(model).__name__
        if name not in self.spec:
            return self if all(isinstance(value, int) for value in self.spec.values()) else None
        given: Any = self.spec[name]
        if isinstance(given, int):
            given = [(name, given)]  # the model goes by that name itself
        used: Tuple[int, ...] = ()
        if isinstance(given, Mapping):
            used = tuple(sorted({ipu for ipu in given.values() if isinstance(ipu, int)}))
            given = {layer: used.index(ipu) if ipu in used else ipu for layer, ipu in given.items()}
        elif isinstance(given, (list, tuple)):
            pairs = [tuple(entry) if isinstance(entry, (list, tuple)) else entry for entry in given]
            numbers = {entry[1] if isinstance(entry, tuple) else place for place, entry in enumerate(pairs)}
            if any(isinstance(entry, tuple) for entry in pairs) and all(isinstance(each, int) for each in numbers):
                used = tuple(sorted(numbers))
                pairs = [
                    (entry[0], used.index(entry[1])) if isinstance(entry, tuple) else (entry, used.index(place))
                    for place, entry in enumerate(pairs)
                ]
            given = pairs
        config = IPUConfig(pipeline=given, execution=self.execution, ipus=self.ipus, memory_per_ipu=self.memory_per_ipu)
        own = PipelineRequest.of(config)
        return None if own is None else replace(own, shared=used)

    def for_inference(self) -> PipelineRequest:
        """Return the request of evaluators that make none, from their trainer's: the same layers, without the loss."""
        if isinstance(self.spec, Planned):
            return replace(self, spec=self.spec.placement().without_loss())
        if isinstance(self.spec, Placement):
            # Without the loss's IPU, three may be left of four: an evaluation must not fail after hours of training.
            return replace(self, spec=self.spec.without_loss(), round_up=True)
        return self
