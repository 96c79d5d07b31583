"""Stages of a program that calls models and computes beside them: the order in which it visits IPUs.

A `Placement` describes the layers of a model that runs once. A captured step calls parts of models, some of them twice,
and computes with their weights. Each visit of an IPU is a stage of its own here, in the order of execution, so that no
value goes back to an earlier stage.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.placing.applied import order_text
from ignite_ipu.pipeline.placing.placement import Placement
from ignite_ipu.pipeline.profiling.layers import layer_names
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS


class _Visit(NamedTuple):
    """One stage."""

    block: str
    ipu: int


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
        self._starts = {path: [start for at, start in places if _is_within(at, path)] for path in self._called}
        self._layers = list(dict.fromkeys(path for path, _ in places))
        self._at = {start: path for path, start in places}
        self._names, self._first = _first_names(modules)
        self._fixed = self._registered(models, modules)
        self._homes: Dict[str, Tuple[int, str]] = {}
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
        self._homes, self._part_homes, self._planned = {}, {}, ()
        with self._hooked(model):
            for self._known in (False, True):
                run()
        self._planned = tuple(self._visits) or (_Visit(self.placement.starts[0].block, self.placement.ipus[0]),)

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
        self._visits: List[_Visit] = []
        self._ipu = 0
        self._part: Optional[str] = None
        self._calls: Dict[str, int] = {}
        self._reached = 0
        self._leaving, self._grad = leaving, torch.is_grad_enabled()
        if self._planned and not self._phased:
            first = self._planned[0]
            self._visits.append(first)
            self._ipu = first.ipu
            backend.poptorch().Block.start(first.block, first.ipu)

    def begin_loss(self) -> None:
        """Visit the loss's IPU, if it has one."""
        if self.placement.loss_ipu is not None:
            self._visit("loss", self.placement.ipus[-1], begins=True)

    def is_here(self, weights: Iterable[str]) -> bool:
        """Return whether all of some weights are known to be on the current IPU."""
        homes = {self._homes.get(self._first.get(name, name), (None,))[0] for name in weights}
        return homes == {self._ipu}

    def gather(self, weights: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]:
        """Visit the IPU of the weights that a function reads, and return them as it is to read them.

        Of weights on several IPUs those that are elsewhere than the last are handed on.
        """
        if self._phased or not self._known:
            return weights
        found = {}
        last = self._home(list(weights)[-1])
        for name, weight in weights.items():
            self._visit(name, self._home(name))
            found[name] = weight if self._ipu == last else backend.poptorch().nop(weight)
        return found

    def _home(self, name: str) -> int:
        name = self._first.get(name, name)
        return self._homes.setdefault(name, (self._fixed.get(name, self._ipu), name))[0]

    def _registered(self, models: Sequence[str], modules: Dict[str, nn.Module]) -> Dict[str, int]:
        """Return the IPUs of all weights by the order in which modules are registered, for modules never called."""
        begins = {path: start.ipu for start, path in self._at.items() if start.call == 0}
        found: Dict[str, int] = {}
        for model in models:
            starts = [start for start, path in self._at.items() if _is_within(path, model)]
            ipu = starts[0].ipu if starts else None
            for path in modules if starts else ():
                if _is_within(path, model):
                    ipu = begins.get(path, ipu)
                    found.update({name: ipu for name in self._names.get(path, ()) if ipu is not None})
        return found

    def _visit(self, label: str, ipu: int, begins: bool = False) -> None:
        """Be on an IPU from here on: a stage of its own, unless the program is there; a phase where one `begins`."""
        if self._phased:
            ipu = 0 if self.placement.execution.startswith("serial") else len(self._visits) % 2
            if not begins and self._visits:
                return
        elif self._visits and ipu == self._ipu:
            return
        elif self._visits and torch.is_grad_enabled() == self._grad:
            self._leaving()
        self._ipu = ipu
        taken = {visit.block for visit in self._visits}
        block, number = label, 1
        while block in taken:
            number += 1
            block = f"{label}#{number}"
        self._visits.append(_Visit(block, ipu))
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
        for owner, names in self._names.items():
            handles.append(modules[owner].register_forward_pre_hook(partial(self._use, owner, names)))
        for path in self._called:
            handles.append(modules[path].register_forward_hook(partial(self._leave_part, path)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter_part(self, path: str, module: nn.Module, args: Any) -> None:
        if self._part is not None:
            return
        self._part, self._calls, self._reached = path, {}, 0
        starts = self._starts[path]
        if not starts:
            self._visit(path or type(module).__name__, self._part_homes.setdefault(path, self._ipu))
        elif not self._phased and (self._at[starts[0]] != path or starts[0].call > 0):
            self._visit(starts[0].block, starts[0].ipu)  # code before the first stage runs with it

    def _leave_part(self, path: str, module: nn.Module, args: Any, output: Any) -> None:
        if self._part != path:
            return
        self._part = None
        missing = [start.block for start in self._starts[path][self._reached :]]
        if missing:
            raise PlanError(
                f"The forward of {type(module).__name__} never reached these layers of the placement: "
                f"{', '.join(missing)}. Remove them, or name layers that run."
            )

    def _enter_layer(self, layer: str, module: nn.Module, args: Any) -> None:
        """Count a call of a layer, and begin the stage that begins there, if one does."""
        if self._part is None:
            return
        call = self._calls.get(layer, 0)
        self._calls[layer] = call + 1
        starts = self._starts[self._part]
        for number, start in enumerate(starts):
            if self._at[start] == layer and start.call == call:
                if number != self._reached:
                    raise PlanError(order_text(start.block, starts[self._reached].block))
                self._reached += 1
                self._visit(start.block, start.ipu, begins=True)

    def _use(self, owner: str, names: Sequence[str], module: nn.Module, args: Any) -> None:
        """Note that the weights which a module holds are on the current IPU."""
        if self._known or self._phased:
            return
        for name in names:
            home, first = self._homes.setdefault(name, (self._ipu, owner))
            if home != self._ipu:
                raise PlanError(
                    f"Weight {name} is used by {first} on IPU {home} and by {owner} on IPU {self._ipu}. Modules that "
                    f"use one weight must be on one IPU: begin a stage at {owner!r} on IPU {home}, as ({owner!r}, "
                    f"{home})."
                )


def _is_within(path: str, part: str) -> bool:
    return not part or path == part or path.startswith(f"{part}.")


def _first_names(modules: Dict[str, nn.Module]) -> Tuple[Dict[str, List[str]], Dict[str, str]]:
    """Return the names of the tensors that each module holds itself, and of each name the first of the same tensor."""
    first: Dict[int, str] = {}
    found: Dict[str, List[str]] = {}
    of_names: Dict[str, str] = {}
    for kind in (PARAMETERS, BUFFERS):
        for path, module in modules.items():
            for name, tensor in module.__dict__[kind].items():
                if tensor is not None:
                    own = f"{path}.{name}" if path else name
                    of_names[own] = known = first.setdefault(id(tensor), own)
                    found.setdefault(path, []).append(known)
    return found, of_names
