"""Places of the models of a captured loop, by its settings; pipelines are not imported unless these use them."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, Mapping, Optional, Tuple

from torch import nn

from ignite_ipu import backend
from ignite_ipu.deferred.settings import captured_options
from ignite_ipu.errors import CaptureError, PlanError
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import OF_PIPELINES, IPUConfig
from ignite_ipu.session.resolved import pipeline_request

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest
    from ignite_ipu.session.placement import MakePlacing

_Placed = Tuple[Optional["PipelineRequest"], Optional["MakePlacing"]]


class Places:
    """The places of a captured model, or of several that are trained together.

    Args:
        model: The module whose programs are compiled.
        requests: Requested placements of the models in it, by their paths; "" for the module itself.

    Attributes:
        ipus_per_replica: IPUs that one copy of the model takes at least; None without requests.
        replicas: Copies of the model that a plan has; None without a plan.
    """

    def __init__(self, model: nn.Module, requests: Mapping[str, PipelineRequest]) -> None:
        self.model = model
        self.requests = dict(requests)
        self._request: Optional[PipelineRequest] = None
        self.ipus_per_replica: Optional[int] = None
        self.replicas: Optional[int] = None
        if requests:
            from ignite_ipu.deferred.compiled.placing import placement_of_all

            self._request = placement_of_all(self.requests, model)
            self.ipus_per_replica = self._request.ipus_per_replica(model)
            self.replicas = self._request.factors(training=True).get("replication_factor")

    @classmethod
    def of(cls, model: nn.Module, config: IPUConfig) -> Places:
        """Return the places of one model, as a configuration says.

        Raises:
            PlanError: The settings do not suit the model.
        """
        request = _request(model, config)
        try:
            return cls(model, {} if request is None else {"": request})
        except PlanError as error:
            name = type(model).__name__
            raise PlanError(
                f"{error} If a loop has several models, list the layers of each: pipeline={{{name!r}: [...]}}."
            ) from error

    def training(self, one_after_another: bool) -> _Placed:
        """Return the request for the training program, and the maker of its placement."""
        if self._request is None:
            return None, None
        from ignite_ipu.deferred.compiled.placing import CapturedPlacing, in_turn

        return in_turn(self._request) if one_after_another else self._request, CapturedPlacing

    def evaluation(self, part: nn.Module) -> _Placed:
        """Return the request for the evaluation of a part of the model, and the maker of its placement."""
        if self._request is None:
            return None, None
        from ignite_ipu.deferred.compiled.placing import CapturedPlacing, for_evaluation

        return for_evaluation(self._request, self.model, part), CapturedPlacing


def _request(model: nn.Module, config: IPUConfig) -> Optional[PipelineRequest]:
    said = {name: getattr(config, name) for name in OF_PIPELINES if getattr(config, name) is not None}
    if not said:
        return None
    if config.pipeline is None and set(said) <= {"execution"}:
        return None  # of blocks in the model's own code
    request = pipeline_request(config)
    own = None if request is None else request.for_model(model)
    if own is not None and config.update == "host" and config.execution == "pipelined" and not config.split_batch:
        raise CaptureError(
            "execution is 'pipelined' with update='host', where each backward() is a device call of one micro-batch, "
            "and a pipeline needs several. Use execution='sharded', or cut each batch by split_batch=."
        )
    return own


def placed_options(config: IPUConfig, places: Places, alone: bool = False) -> Options:
    """Return the options that every training program's own are derived from, as `captured_options` does.

    A plan sets the number of replicas unless something else does. The loop sets the number of micro-batches in an
    update. Without a pipeline, blocks in a model's own code are executed as configured.
    """
    if places.replicas is not None and config.replication_factor is None and config.update != "host":
        config = dataclasses.replace(config, replication_factor=places.replicas)
    options = captured_options(config, places.ipus_per_replica, alone)
    if config.pipeline is not None or config.execution is None:
        return options
    if "phased" in config.execution:
        raise CaptureError(
            f"execution is {config.execution!r} without pipeline=, which would list its phases. List the layers at "
            "which they begin, or set the execution strategy in options."
        )
    if config.execution == "sharded":
        one_after_another(options)
    return options


def execution_of(options: Options) -> Any:
    """Return the execution strategy of options, which PopTorch has no public name for."""
    return options._execution_strategy  # type: ignore[attr-defined]


def one_after_another(options: Options) -> None:
    """Let stages that the options pipeline run one after another, for calls with too few micro-batches."""
    poptorch: Any = backend.poptorch()
    strategy = execution_of(options)
    if not isinstance(strategy, poptorch.PipelinedExecution) or isinstance(strategy, poptorch.ShardedExecution):
        return
    sharded = poptorch.ShardedExecution()
    vars(sharded).update(vars(copy.deepcopy(strategy)))
    options.setExecutionStrategy(sharded)
