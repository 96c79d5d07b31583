"""Clipping of the gradients of fused updates by their global norm, which becomes part of the compiled step."""

from __future__ import annotations

import math
from typing import Any, Iterable

import torch
from torch import nn

from ignite_ipu.deferred.graph.operations import NORM, Operation
from ignite_ipu.deferred.model.fused_update import FusedUpdate
from ignite_ipu.deferred.tensor.tensor import deferred_results
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line


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
    chosen = list(parameters) if max_norm == math.inf else None
    before = training.clipping.so_far
    if chosen is None:
        _check_all(update, parameters, given)
    if not any(entry.exists for entry in update.gradients.entries):
        # Nothing is clipped that is not there.
        return torch.tensor(0.0)
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
    if not pending and found.available:
        entries = update.gradients.entries
        if not all(entry.exists for entry in entries):
            # The device has brought back those that were cleared since, too.
            there = frozenset().union(*[entry.ids for entry in entries if entry.exists])
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


def are_of_one_module(given: Any) -> bool:
    """Return whether parameters are given as `module.parameters()`."""
    return getattr(given, "gi_code", None) is nn.Module.parameters.__code__


def _check_all(update: FusedUpdate, parameters: Iterable[torch.Tensor], given: Any) -> None:
    """Refuse to clip some parameters only, unless they are known to be those of the last check.

    They are identified by the module whose `parameters()` they are, else by their number; and by the trained weights.
    """
    told: Any = None
    if are_of_one_module(given) and given.gi_frame is not None:
        told = (given.gi_frame.f_locals["self"], given.gi_frame.f_locals["recurse"])
    else:
        parameters = list(parameters)
        told = len(parameters)
    trained = update.training.modes.trained()
    if (told, trained) != update.training.clipping.checked:
        update.books.views.check_all(parameters, update.gradients.own)
        update.training.clipping.checked = told, trained
