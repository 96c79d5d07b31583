"""Captured models over several IPUs: where their layers are, and how the programs of a loop are spread over them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence

from torch import nn

from ignite_ipu.deferred.compiled.joined_models import joined_in
from ignite_ipu.errors import PlanError, logger
from ignite_ipu.pipeline.placing.applied import Start
from ignite_ipu.pipeline.placing.placement import Placement, Planned
from ignite_ipu.pipeline.placing.request import PipelineRequest
from ignite_ipu.pipeline.placing.route import Route
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.micro_batches import first_micro_batch
from ignite_ipu.program.step import BatchStep, opened
from ignite_ipu.session.placement import Placing
from ignite_ipu.session.resolved import Resolved

if TYPE_CHECKING:
    from ignite_ipu.deferred.compiled.step import ReadyStep


def placement_of_all(requests: Mapping[str, PipelineRequest], model: nn.Module) -> PipelineRequest:
    """Return the request of a module from those of the models in it, by their paths.

    Raises:
        PlanError: They require different executions, one is to be planned from its first batch, or one does not suit
            its model.
    """
    if set(requests) == {""}:
        return requests[""]
    starts: List[Start] = []
    executions: Dict[str, str] = {}
    for path, request in requests.items():
        part = model.get_submodule(path)
        name = type(part).__name__
        if request.automatic:
            raise PlanError(
                f'pipeline="auto" plans one model, but {name} is trained together with others. List the layers at '
                f"which its stages begin, as pipeline={{{name!r}: [...]}}."
            )
        placement = request.placement(part)
        executions[placement.execution] = name
        for start in placement.starts:
            ipu = request.shared[start.ipu] if request.shared else start.ipu
            starts.append(Start(path if start.layer == name else f"{path}.{start.layer}", ipu, start.call))
    if len(executions) > 1:
        said = " and ".join(f"{execution} ({name})" for execution, name in executions.items())
        raise PlanError(f"Models that are trained together have different executions: {said}. Say one.")
    first = next(iter(requests.values()))
    return dataclasses.replace(first, spec=Placement(starts, next(iter(executions))), shared=())


def for_evaluation(request: PipelineRequest, model: nn.Module, part: nn.Module) -> PipelineRequest:
    """Return the request of an evaluation of a part of a model: its layers stay where they train, one after another.

    A loop evaluates one batch at a time, of which a pipeline would need several.
    """
    if request.automatic:
        return dataclasses.replace(request, execution="sharded")
    placement = request.placement(model)
    name = type(part).__name__
    path = next((path for path, module in model.named_modules() if module is part), "")
    starts: List[Start] = []
    for start in placement.starts:
        layer = "" if start.layer == type(model).__name__ else start.layer
        if not path:
            starts.append(start)
        elif layer == path:
            starts.append(dataclasses.replace(start, layer=name))
        elif layer.startswith(f"{path}."):
            starts.append(dataclasses.replace(start, layer=layer[len(path) + 1 :]))
    starts = starts or [Start(name, 0)]
    used = sorted({start.ipu for start in starts})
    starts = [dataclasses.replace(start, ipu=used.index(start.ipu)) for start in starts]
    execution = "sharded" if placement.execution == "pipelined" else placement.execution
    return PipelineRequest(Placement(starts, execution), execution, request.ipus, request.memory_per_ipu, True)


def in_turn(request: PipelineRequest) -> PipelineRequest:
    """Return a request whose stages run one after another where they are to be pipelined."""
    if (request.execution or "pipelined") != "pipelined":
        return request
    spec: Any = request.spec
    if isinstance(spec, Planned):
        spec = spec.placement()
    if isinstance(spec, Placement):
        spec = Placement(spec.starts, "sharded", spec.loss_ipu)
    return dataclasses.replace(request, spec=spec, execution="sharded")


class CapturedPlacing(Placing):
    """Placement of a captured program, whose stages are found by a run of it on the host."""

    _route: Optional[Route] = None
    _execution = "sharded"
    _was_pipelined = False

    def again(self, step: BatchStep, resolved: Resolved) -> CapturedPlacing:
        """Return the placement of the models on IPUs for another program of the loop."""
        following = CapturedPlacing(dataclasses.replace(resolved, pipeline=self.request), step, self._optimizer)
        following._was_pipelined = self._was_pipelined
        if self.request.automatic:
            following.placement, following.plan, following._memory = self.placement, self.plan, self._memory
        return following

    def prepare(self, step: BatchStep, leaves: Sequence[Any]) -> None:
        """Plan or estimate as for every program, find the stages, and hold the update to their number.

        Raises:
            PlanError: The placement does not suit the program, or a pipeline needs more micro-batches.
        """
        super().prepare(step, leaves)
        assert self.placement is not None
        captured: ReadyStep = step  # type: ignore[assignment]
        route = Route(self.placement, step.model, captured.called, joined_in(step.model) or [""])
        inputs = first_micro_batch(leaves, self._resolved.micro_batches)
        with step.host_weights.tried_in(step, step.model), opened(step.stages, route):
            route.explore(step.model, lambda: step.forward(*inputs))
        self._route, self._execution = route, self.placement.execution
        if self._training and self._execution == "pipelined" and len(set(route.ipus)) > 1:
            self._check_filled(route)

    def configure(self, options: Options) -> None:
        """Set the stages that were found."""
        super().configure(options)
        assert self._route is not None
        options.setExecutionStrategy(self._route.strategy(self._execution))

    @contextlib.contextmanager
    def applied(self, step: BatchStep) -> Iterator[None]:
        """Have stages open their blocks while the program compiles."""
        assert self._route is not None
        with self._alone(step), opened(step.stages, self._route), self._route.applied(step.model):
            yield

    def _check_depth(self, placement: Placement) -> None:
        """Leave the depth to `prepare`: it depends on the whole program."""

    def _check_filled(self, route: Route) -> None:
        """Refuse an update with fewer micro-batches than a pipeline needs; a later, smaller one runs sharded."""
        calls = self._resolved.geometry
        replicas, needed, found = calls.replication_factor, 2 * route.stages - 1, calls.gradient_accumulation
        if found >= needed:
            self._was_pipelined = True
            return
        each = f" in each of {replicas} replicas" if replicas > 1 else ""
        if self._was_pipelined:
            self._execution = "sharded"
            logger.warning(
                "An update has %d micro-batches%s, and the pipeline of %d stages needs %d: the stages of this update "
                "run one after another.",
                found,
                each,
                route.stages,
                needed,
            )
            return
        raise PlanError(
            f"A pipeline of {route.stages} stages needs at least 2 * {route.stages} - 1 = {needed} micro-batches in an "
            f"update{each}, and this one has {found}, {(needed - found) * replicas} too few. Accumulate gradients over "
            f"{needed * replicas} micro-batches before optimizer.step(), or cut each batch "
            "by IPUConfig(split_batch=...). IPUConfig(execution='sharded') needs no more."
        )
