"""Stages of a program that calls models and computes beside them: the order in which it visits IPUs.

A `Placement` describes the layers of a model that runs once. A captured step calls parts of models, some of them twice,
and computes with their weights. Each visit of an IPU is a stage of its own here, in the order of execution, so that no
value goes back to an earlier stage.
"""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.placing.applied import order_text
from ignite_ipu.pipeline.placing.placement import Placement
from ignite_ipu.pipeline.placing.weight_homes import WeightHomes, is_within
from ignite_ipu.pipeline.profiling.layers import layer_names


class _Visit(NamedTuple):
    """One stage."""

    block: str
    ipu: int


@dataclasses.dataclass
class _Run:
    """One run of a program over its stages, which has come to an IPU.

    Attributes:
        leaving: Called before the program leaves an IPU for another.
        grad: Whether autograd recorded at the beginning.
        visits: The stages so far.
        ipu: The current IPU.
        part: Path of the called module that runs.
        calls: The calls of its layers so far.
        reached: The stages that have begun in it.
    """

    leaving: Callable[[], Any]
    grad: bool
    visits: List[_Visit] = dataclasses.field(default_factory=list)
    ipu: int = 0
    part: Optional[str] = None
    calls: Dict[str, int] = dataclasses.field(default_factory=dict)
    reached: int = 0


class Route:
    """The stages of one program; `explore` finds them by a run on the host, and `applied` opens them in a trace.

    The layers at which stages begin decide where a model runs. A called model without such a layer stays on the IPU of
    its first call. A function of weights runs on the IPU of these weights, everything else where the program is.

    Args:
        placement: Where stages begin in `model`.
        model: The module with all that the program calls.
        called: Paths of the modules that the program calls, "" for `model` itself.
        models: Paths of the user's models in `model`.

    Raises:
        PlanError: A layer that the model does not have.
    """

    def __init__(
        self, placement: Placement, model: nn.Module, called: Sequence[str], models: Sequence[str] = ("",)
    ) -> None:
        self.placement = placement
        self._phased = "phased" in placement.execution
        self._called = tuple(dict.fromkeys(called))
        modules = dict(model.named_modules())
        # A model without children is its own only layer, and measured under its class's name.
        named = {type(model).__name__: model, **modules}
        for start in placement.starts:
            if start.layer not in named:
                raise PlanError(
                    f"{type(model).__name__} has no layer named {start.layer!r}. Its layers are: "
                    f"{', '.join(layer_names(model))}."
                )
        paths = {id(module): path for path, module in reversed(list(modules.items()))}
        places = [(paths[id(named[start.layer])], start) for start in placement.starts]
        self._starts = {path: [start for at, start in places if is_within(at, path)] for path in self._called}
        self._layers = list(dict.fromkeys(path for path, _ in places))
        self._at = {start: path for path, start in places}
        self._homes = WeightHomes(modules, self._at, models)
        self._part_homes: Dict[str, int] = {}
        self._known = False
        self._planned: Tuple[_Visit, ...] = ()
        self.begin()

    def explore(self, model: nn.Module, run: Callable[[], Any]) -> None:
        """Find the stages by two runs on the host: one finds the IPUs of the weights, the next the stages.

        Raises:
            PlanError: Layers run in another order than the placement lists them or not at all, or layers on different
                IPUs use one weight.
        """
        self._homes.forget()
        self._part_homes, self._planned = {}, ()
        with self._hooked(model):
            for self._known in (False, True):
                run()
        self._planned = tuple(self._run.visits) or (_Visit(self.placement.starts[0].block, self.placement.ipus[0]),)

    @property
    def ipus(self) -> Tuple[int, ...]:
        """The IPU of each stage."""
        return tuple(visit.ipu for visit in self._planned)

    @property
    def stages(self) -> int:
        """Pipeline stages as PopTorch counts them: neighbours on one IPU are one stage, and the first IPU is 0."""
        return 1 + sum(before != after for before, after in zip((0, *self.ipus), self.ipus))

    def strategy(self, execution: str) -> Any:
        """Return a new `poptorch` execution strategy of the stages that were found."""
        poptorch = backend.poptorch()
        stages = [poptorch.Stage(visit.block).ipu(visit.ipu) for visit in self._planned]
        kind = getattr(poptorch, f"{execution.title().replace(' ', '')}Execution")
        return kind(*(map(poptorch.Phase, stages) if self._phased else stages))

    @contextlib.contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Open the stages while the program is traced in the `with` block."""
        with self._hooked(model):
            yield

    def begin(self, leaving: Callable[[], Any] = lambda: None) -> None:
        """Begin a run of the program, on the IPU of its first stage.

        Args:
            leaving: Called before the program leaves an IPU for another, to compute the values of weights that are
                there (`is_here`).
        """
        self._run = run = _Run(leaving, torch.is_grad_enabled())
        if self._planned and not self._phased:
            first = self._planned[0]
            run.visits.append(first)
            run.ipu = first.ipu
            backend.poptorch().Block.start(first.block, first.ipu)

    def begin_loss(self) -> None:
        """Visit the loss's IPU, if it has one."""
        if self.placement.loss_ipu is not None:
            self._visit("loss", self.placement.ipus[-1], begins=True)

    def is_here(self, weights: Iterable[str]) -> bool:
        """Return whether all of some weights are known to be on the current IPU."""
        return self._homes.are_on(self._run.ipu, weights)

    def gather(self, weights: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Visit the IPU of the weights that a function reads, and return them as it is to read them.

        Of weights on several IPUs those that are elsewhere than the last are handed on.
        """
        if self._phased or not self._known:
            return weights
        found = {}
        last = self._homes.home(list(weights)[-1], self._run.ipu)
        for name, weight in weights.items():
            self._visit(name, self._homes.home(name, self._run.ipu))
            found[name] = weight if self._run.ipu == last else backend.poptorch().nop(weight)
        return found

    def _visit(self, label: str, ipu: int, begins: bool = False) -> None:
        """Be on an IPU from here on: a stage of its own, unless the program is there; a phase where one `begins`."""
        run = self._run
        if self._phased:
            ipu = 0 if self.placement.execution.startswith("serial") else len(run.visits) % 2
            if not begins and run.visits:
                return
        elif run.visits and ipu == run.ipu:
            return
        elif run.visits and torch.is_grad_enabled() == run.grad:
            run.leaving()
        run.ipu = ipu
        taken = {visit.block for visit in run.visits}
        block, number = label, 1
        while block in taken:
            number += 1
            block = f"{label}#{number}"
        run.visits.append(_Visit(block, ipu))
        if self._known:
            backend.poptorch().Block.start(block, ipu)

    @contextlib.contextmanager
    def _hooked(self, model: nn.Module) -> Iterator[None]:
        modules = dict(model.named_modules())
        handles = []
        for path in self._called:
            handles.append(modules[path].register_forward_pre_hook(partial(self._enter_part, path)))
        for layer in self._layers:
            handles.append(modules[layer].register_forward_pre_hook(partial(self._enter_layer, layer)))
        for owner, names in self._homes.held.items():
            handles.append(modules[owner].register_forward_pre_hook(partial(self._use, owner, names)))
        for path in self._called:
            handles.append(modules[path].register_forward_hook(partial(self._leave_part, path)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter_part(self, path: str, module: nn.Module, args: Any) -> None:
        run = self._run
        if run.part is not None:
            return
        run.part, run.calls, run.reached = path, {}, 0
        starts = self._starts[path]
        if not starts:
            self._visit(path or type(module).__name__, self._part_homes.setdefault(path, run.ipu))
        elif not self._phased and (self._at[starts[0]] != path or starts[0].call > 0):
            self._visit(starts[0].block, starts[0].ipu)  # code before the first stage runs with it

    def _leave_part(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        run = self._run
        if run.part != path:
            return
        run.part = None
        missing = [start.block for start in self._starts[path][run.reached :]]
        if missing:
            raise PlanError(
                f"The forward of {type(module).__name__} never reached these layers of the placement: "
                f"{', '.join(missing)}. Remove them, or name layers that run."
            )

    def _enter_layer(self, layer: str, module: nn.Module, args: Any) -> None:
        """Count a call of a layer, and begin the stage that begins there, if one does."""
        run = self._run
        if run.part is None:
            return
        call = run.calls.get(layer, 0)
        run.calls[layer] = call + 1
        starts = self._starts[run.part]
        for number, start in enumerate(starts):
            if self._at[start] == layer and start.call == call:
                if number != run.reached:
                    raise PlanError(order_text(start.block, starts[run.reached].block))
                run.reached += 1
                self._visit(start.block, start.ipu, begins=True)

    def _use(self, owner: str, names: Sequence[str], module: nn.Module, args: Any) -> None:
        """Note that the weights which a module holds are on the current IPU."""
        if not (self._known or self._phased):
            self._homes.use(owner, names, self._run.ipu)
