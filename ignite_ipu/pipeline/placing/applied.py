"""A placement hooked into a model: forward hooks that open PopTorch blocks and watch the order of layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Tuple

from torch import nn

from ignite_ipu import backend
from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.profiling.layers import layer_names


@dataclass(frozen=True)
class Start:
    """A layer at which a stage begins, and the stage's IPU; `call` numbers the calls of a module, from 0."""

    layer: str
    ipu: int
    call: int = 0

    @property
    def block(self) -> str:
        """Id of the PopTorch block opened here."""
        return self.layer if self.call == 0 else f"{self.layer}#{self.call + 1}"


def order_text(late: str, early: str) -> str:
    """Raise for a layer that ran before one that the placement lists ahead of it."""
    return (
        f"Layer {late!r} runs before layer {early!r}, but the placement lists it after. List layers in the order in "
        "which they run."
    )


class _Progress:
    """Progress of a run of the model through the placement's starts; its hooks copy and pickle with the model."""

    def __init__(self, starts: Sequence[Start], ipus: Sequence[int]) -> None:
        self.starts, self.ipus = tuple(starts), tuple(ipus)
        self.running = False
        self.runs = 0
        self.reached = 0
        self.calls: Dict[str, int] = {}
        self.homes: Dict[str, Tuple[int, str]] = {}

    def restart(self, module: nn.Module, args: Any) -> None:
        self.running, self.reached = True, 0
        self.calls, self.homes = {}, {}

    def finish(self, module: nn.Module, args: Any, output: Any) -> None:
        self.running = False
        self.runs += 1
        missing = [start.block for start in self.starts[self.reached :]]
        if missing:
            raise PlanError(
                f"The forward of {type(module).__name__} never reached these layers of the placement: "
                f"{', '.join(missing)}. Remove them, or name layers that run."
            )

    def enter(self, layer: str, module: nn.Module, args: Any) -> None:
        """Count a call of a layer, and open the block of the stage that begins there, if one does."""
        if not self.running:
            return
        call = self.calls.get(layer, 0)
        self.calls[layer] = call + 1
        for number, start in enumerate(self.starts):
            if (start.layer, start.call) == (layer, call):
                if number != self.reached:
                    raise PlanError(order_text(start.block, self.starts[self.reached].block))
                self.reached += 1
                backend.poptorch().Block.start(start.block, self.ipus[number])

    def use(self, weight: str, owner: str, module: nn.Module, args: Any) -> None:
        """Note that a module which holds a shared weight runs on the current IPU."""
        if not self.running:
            return
        ipu = self.ipus[max(0, self.reached - 1)]
        home, first = self.homes.setdefault(weight, (ipu, owner))
        if home != ipu:
            raise PlanError(
                f"Weight {weight} is shared by {first} on IPU {home} and {owner} on IPU {ipu}. Layers that share a "
                f"weight must be on one IPU: begin a stage at {owner!r} on IPU {home}, as ({owner!r}, {home})."
            )


class AppliedPlacement:
    """The hooks of one placement on one model; also a context manager.

    Args:
        begin_loss: Opens the loss's block, between the model's forward and the loss.
    """

    def __init__(
        self, starts: Sequence[Start], ipus: Sequence[int], model: nn.Module, begin_loss: Callable[[], None]
    ) -> None:
        modules = dict(model.named_modules())
        # A model without children is its own only layer, and measured under its class's name.
        layers = {type(model).__name__: model, **modules}
        self.begin_loss = begin_loss
        for start in starts:
            if start.layer not in layers:
                raise PlanError(
                    f"{type(model).__name__} has no layer named {start.layer!r}. Its layers are: "
                    f"{', '.join(layer_names(model))}."
                )
        self._progress = progress = _Progress(starts, ipus)
        self._handles = [
            model.register_forward_pre_hook(progress.restart),
            model.register_forward_hook(progress.finish),
        ]
        for name in dict.fromkeys(start.layer for start in starts):
            self._handles.append(layers[name].register_forward_pre_hook(partial(progress.enter, name)))
        for weight, owners in _shared_parameters(modules):
            for owner in owners:
                self._handles.append(modules[owner].register_forward_pre_hook(partial(progress.use, weight, owner)))

    def check_ran(self) -> None:
        """Refuse a run that was none of the model's own, so that no stage could begin.

        Raises:
            PlanError: The model has not been called since the hooks are on.
        """
        if not self._progress.runs:
            raise PlanError(
                "The model itself was not called, only parts of it, so its stages did not begin. Make model_fn call "
                "model(...), as its default does, or annotate the blocks by hand."
            )

    def remove(self) -> None:
        """Take the hooks off the model; doing so again changes nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> AppliedPlacement:
        return self

    def __exit__(self, *error: Any) -> None:
        self.remove()


def _shared_parameters(modules: Dict[str, nn.Module]) -> List[Tuple[str, List[str]]]:
    """Return each parameter that several modules own directly, by its first name, with those modules' names."""
    owners: Dict[nn.Parameter, List[Tuple[str, str]]] = {}
    for prefix, module in modules.items():
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(parameter, []).append((f"{prefix}.{name}" if prefix else name, prefix))
    return [(found[0][0], [prefix for _, prefix in found]) for found in owners.values() if len(found) > 1]
