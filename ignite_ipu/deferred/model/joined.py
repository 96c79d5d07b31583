"""Models that one step trains: an encoder and a decoder, two towers, a frozen backbone and its head.

To PyTorch they are separate modules; PopTorch compiles one. So they become the children of one module as soon as it is
seen that one optimizer holds parameters of several, or that a loss is computed with frozen ones, and each stays the
object that the user calls.
"""

from __future__ import annotations

import weakref
from typing import Any, List, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import MODEL, OPTIMIZERS, held_by, held_tensors, is_held
from ignite_ipu.deferred.model.model import CapturedModel, owner_of
from ignite_ipu.deferred.model.updates import Updates
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import requires_grad
from ignite_ipu.program.user_code import Line
from ignite_ipu.torch_names.modules import modules_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class JoinedModels(nn.Module):
    """The one module that PopTorch compiles for several models: its children, named after their classes."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        for model in models:
            name, count = type(model).__name__, 1
            while name in modules_of(self):
                count += 1
                name = f"{type(model).__name__}_{count}"
            self.add_module(name, model)
        self.joined_names = " and ".join(sorted(type(model).__name__ for model in models))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise CaptureError("Models that are trained together are called one by one.")


def join(captures: List[CapturedModel], reason: str) -> CapturedModel:
    """Return what captures several models as one from now on, the trained ones first; `reason` begins messages."""
    parts: List[CapturedModel] = []
    tops: List[nn.Module] = []
    for capture in captures:
        joined = isinstance(capture.model, JoinedModels)
        parts += [*([] if joined else [capture]), *capture.parts]
        tops += capture.model.children() if joined else [capture.model]
    modules = [id(module) for top in tops for module in top.modules()]
    if len(set(modules)) < len(modules):
        names = " and ".join(sorted(capture.name for capture in captures))
        raise CaptureError(
            f"{reason} {names}, which share submodules and are called separately. Put them "
            "into one nn.Module whose forward does both, and call that."
        )
    for capture in captures:
        # What has been trained alone goes on together with the others.
        for turn in capture.turns:
            turn.training.forget_program()
        if capture.on_host is not None:
            capture.on_host.programs.forget_program()
    joined_models = JoinedModels(tops)
    requests = {
        capture.model.get_submodule(path): request
        for capture in captures
        for path, request in capture.places.requests.items()
    }
    places = {name: requests[model] for name, model in joined_models.named_children() if model in requests}
    whole = captures[0].like(joined_models, places)
    whole.join(parts)
    return whole


def joined_by_optimizers(models: Sequence[CapturedModel], line: Line) -> List[CapturedModel]:
    """Return what trains captured models, joined as far as they have an optimizer or the loss at a line in common.

    They know their optimizers then. Of several optimizers of the same weights the one counts that could train the model
    alone; which one does, its `step()` says.
    """
    optimizers = list(OPTIMIZERS)
    for optimizer in optimizers:
        _joined(optimizer)
    wholes = list(dict.fromkeys(model.whole for model in models))
    if len(wholes) > 1:
        # The trained ones come first.
        wholes.sort(key=lambda model: not is_held(model.model) and model.is_frozen)
        wholes = [join(wholes, f"The loss at {line} is computed by")]
    known = [(optimizer, model) for optimizer, model in zip(optimizers, map(_joined, optimizers)) if model is not None]
    for optimizer, model in sorted(known, key=lambda pair: not _holds_all(*pair)):
        if model.training.optimizer is None or not _overlapping(optimizer, model):
            model.turn_of(optimizer)
    return wholes


def trained_by(optimizer: torch.optim.Optimizer) -> Optional[Updates]:
    """Return the updates that an optimizer makes by what is known; None where its weights have another, or none yet."""
    models = {owner.whole for owner in map(owner_of, held_tensors(optimizer)) if owner is not None}
    return next((turn for model in models for turn in model.turns if turn.training.optimizer is optimizer), None)


def captured_by(optimizer: torch.optim.Optimizer) -> Optional[Updates]:
    """Return the updates of captured models by an optimizer that holds parameters of these; None if it holds none.

    Several models whose parameters it holds become one from then on.
    """
    known: Optional[weakref.ref[Updates]] = optimizer.__dict__.get(MODEL)
    updates = None if known is None else known()
    if updates is not None and updates.is_current and updates.training.prepared:
        return updates
    model = _joined(optimizer)
    if model is None:
        return None
    others = _overlapping(optimizer, model)
    if others and _holds_all(optimizer, model) and not model.several:
        updates = model.turns[0]
    elif others:
        raise CaptureError(
            f"The model {model.name} has two optimizers for the same weights, a {type(others[0]).__name__} and a "
            f"{type(optimizer).__name__}. Let each have parameters of its own, or let each have all of them where one "
            "follows the other."
        )
    else:
        updates = model.turn_of(optimizer)
        if not _holds_all(optimizer, model):
            for other in list(OPTIMIZERS):
                if other is not optimizer and _joined(other) is model and not _overlapping(other, model):
                    model.turn_of(other)
    optimizer.__dict__[MODEL] = weakref.ref(updates)
    return updates


def _overlapping(optimizer: torch.optim.Optimizer, model: CapturedModel) -> List[torch.optim.Optimizer]:
    """Return the other optimizers of a model that hold some of the same parameters."""
    own = held_by(optimizer)
    others = [turn.training.optimizer for turn in model.turns]
    return [each for each in others if each is not None and each is not optimizer and own & held_by(each)]


def _joined(optimizer: torch.optim.Optimizer) -> Optional[CapturedModel]:
    """Return the captured model whose parameters an optimizer holds, after joining it from several where need be."""
    models = [model for model in dict.fromkeys(map(owner_of, held_tensors(optimizer))) if model is not None]
    if len(models) > 1:
        return join(models, f"The {type(optimizer).__name__} holds parameters of")
    return models[0] if models else None


def _holds_all(optimizer: torch.optim.Optimizer, model: CapturedModel) -> bool:
    """Tell whether an optimizer alone could train a model."""
    held = held_by(optimizer)
    with DisableTorchFunctionSubclass():
        return all(id(parameter) in held for parameter in model.model.parameters() if requires_grad(parameter))
