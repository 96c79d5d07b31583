"""Clipping of gradients to a global norm: of one loop, within the device's step, or of several, on the host."""

from __future__ import annotations

import math
from typing import Any, Iterable, List, Optional, Union

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # PyTorch's own, which a script's calls may be substituted for

from ignite_ipu.deferred.graph.operations import NORM, Operation
from ignite_ipu.deferred.model.fused_update import FusedUpdate
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.model import first_owner, loops_of, owner_of
from ignite_ipu.deferred.tensor.tensor import deferred_results
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import gradient_of
from ignite_ipu.program.user_code import current_line


def clip_gradients(
    parameters: Union[torch.Tensor, Iterable[torch.Tensor]], max_norm: float, norm_type: float = 2.0, **kwargs: Any
) -> torch.Tensor:
    """Clip gradients as `torch.nn.utils.clip_grad_norm_` does; those of a captured loop within the device's step.

    Returns:
        The norm before; of a captured loop a tensor whose value comes with the update.

    Raises:
        CaptureError: It is no 2-norm, or is not of all trained parameters of one optimizer.
    """
    owner, every = first_owner(parameters)
    if owner is None:
        return clip_grad_norm_(list(every), max_norm, norm_type, **kwargs)
    loop, checks, module = owner.loop, bool(kwargs.get("error_if_nonfinite")), _module_of(parameters)
    known = module is not None and any(module is each.model for each in loop.models)
    if checks or not (known and any(programs.prepared for programs in loop.updates.programs)):
        every = list(every)
        loops = loops_of(every)
        if checks or len(loops) > 1 or any(owner_of(each) is None and gradient_of(each) is not None for each in every):
            return _clip_on_host(loops, every, max_norm, norm_type, **kwargs)
    return loop.updates.gradients.clip(every, float(max_norm), float(norm_type), parameters)


def _clip_on_host(
    loops: List[Loop], tensors: List[torch.Tensor], max_norm: float, norm_type: float, **kwargs: Any
) -> torch.Tensor:
    """Clip gradients that no device's step clips together, or whose norm decides whether to go on."""
    names, checks = " and ".join(sorted(loop.name for loop in loops)), kwargs.get("error_if_nonfinite")
    given = f"clip_grad_norm_ at {current_line()} was given parameters of {names}"
    if len(loops) > 1:
        reason = f"{given}, which are trained apart: clip those of each by a call of its own."
    elif checks:
        reason = (
            f"clip_grad_norm_ at {current_line()} has error_if_nonfinite=True, and a device has the norm with the "
            "update. Read the norm that it returns after optimizer.step()."
        )
    else:
        reason = (
            f"{given} and others, whose gradients the host has: a device clips those of its update alone. Clip each by "
            "a call of its own; or let the optimizer hold all, which is prepared with the model."
        )
    shown = [loop for each in tensors for loop in loops_of([each]) if any(loop.updates.gradients.shows([each]))]
    for loop in loops if shown else ():
        loop.updates.leave_device(reason, CaptureError(reason))
    return clip_grad_norm_(tensors, max_norm, norm_type, **kwargs)


def clip(
    update: FusedUpdate, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float, given: Any
) -> torch.Tensor:
    """Clip the gradients of the pending update to a global norm; returns the norm before, which comes with the update.

    Args:
        parameters: All trained ones; if `max_norm` is infinite, those whose norm is returned.
        max_norm: Infinite to clip nothing.
        given: The argument of the loop, which may show the origin of the parameters.
    """
    training, found = update.training, update.training.gradients
    views, none_of_host = update.books.views, update.books.views.known_none
    chosen: Optional[List[torch.Tensor]] = None
    if max_norm == math.inf:
        parameters = chosen = list(parameters)
    elif not none_of_host:
        parameters = list(parameters)
    before = training.clipping.so_far
    if chosen is None:
        _check_all(update, parameters, given)
    if not any(entry.exists for entry in update.gradients.entries):
        # Those of the host are PyTorch's, if there are any.
        return torch.tensor(0.0) if none_of_host else clip_grad_norm_(list(parameters), max_norm, norm_type)
    if not none_of_host:
        views.refuse_those_of_the_host(update.gradients.own if chosen is None else set(map(id, chosen)))
    pending, early = update.gradients.pending, update.early
    if early is not None:
        early.check_confirmed()
    if chosen is None and (pending or early is not None):
        training.clipping.clip(max_norm, norm_type, None if early is None else early.line, update.gradients.own)
    if chosen is None and not pending and early is None:
        if update.loop.now.updates.may_leave:
            raise CaptureError(f"Gradients are clipped at {current_line()} after the update that used them.")
        for entry in update.gradients.entries:
            entry.unknown = f"gradients were clipped at {current_line()}, after the update that used them"
        chosen = [each for each in update.loop.modes.parameters if id(each) in update.gradients.own]
    if not pending and found.available:
        entries = update.gradients.entries
        if not all(entry.of_losses for entry in entries):
            # The device has brought back those that were cleared since, too, to None or to zeros.
            there = frozenset().union(*[entry.ids for entry in entries if entry.of_losses])
            chosen = update.loop.modes.parameters if chosen is None else chosen
            chosen = [each for each in chosen if id(each) in there]
        return found.norm(chosen, norm_type, before if early is not None else training.clipping.norm)
    operation = Operation(NORM, update.loop.now.models[0], (), current_line())
    norm: torch.Tensor = deferred_results(operation)
    if pending:
        found.await_norm(norm.value, chosen, norm_type, before)  # type: ignore[attr-defined]
    else:
        operation.problem = "the update was made before the norm of its gradients was asked for"
    return norm


def _module_of(given: Any) -> Optional[nn.Module]:
    """Return the module if parameters are given as its `parameters()`, and some are left; None for all others."""
    if getattr(given, "gi_code", None) is not nn.Module.parameters.__code__ or given.gi_frame is None:
        return None
    module: nn.Module = given.gi_frame.f_locals["self"]
    return module


def _check_all(update: FusedUpdate, parameters: Iterable[torch.Tensor], given: Any) -> None:
    """Refuse to clip some parameters only, unless they are known to be those of the last check.

    They are identified by the module whose `parameters()` they are, else by their number; and by the trained weights.
    """
    told: Any = None
    module = _module_of(given)
    if module is not None:
        told = (module, given.gi_frame.f_locals["recurse"])
    else:
        parameters = list(parameters)
        told = len(parameters)
    trained = update.training.modes.trained()
    if (told, trained) != update.training.clipping.checked:
        update.books.views.check_all(parameters, update.gradients.own)
        update.training.clipping.checked = told, trained
