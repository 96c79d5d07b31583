"""Reasons why the device cannot make an update: gradients of unlike stories, used ones, and graphs that are gone."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional, Sequence

from ignite_ipu.deferred.compiled.fused_programs import FusedPrograms
from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.gradient_views import GradientViews
from ignite_ipu.deferred.model.gradients import Entry
from ignite_ipu.deferred.model.turns import gradient_path
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.user_code import Line, current_line


def obstacle(
    entries: Sequence[Entry], pending: Sequence[Loss], training: FusedPrograms, views: GradientViews
) -> Optional[str]:
    """Return why the device cannot make the update that `optimizer.step()` means, None if it can.

    Args:
        entries: Those of the optimizer's parameters, some of which exist.
        pending: Losses that went backward and of which no update has been made.
    """
    if len(entries) > 1:
        entries = _reached_entries(entries, pending, training)
    first = next(entry for entry in entries if entry.exists)
    others = [entry for entry in entries if entry.story != first.story]
    differ = [name for entry in others for name in views.names(entry.ids)]
    none = [name for entry in others if not entry.exists for name in views.names(entry.ids)]
    if none and len(none) == len(differ):
        return (
            f"The gradient of {listed(none, 1)} was set to None before step() at {current_line()}, and that of "
            f"{listed(views.names(first.ids), 1)} was not: PyTorch would use it, also for weights that were frozen "
            "since. A device updates all weights that are trained: to leave some out, set requires_grad_(False) on "
            "them before the model is called; to drop all gradients, call optimizer.zero_grad()."
        )
    if differ:
        return (
            f"The gradients of {listed(differ, 1)} were cleared at another time than those of "
            f"{listed(views.names(first.ids), 1)}, so the update at {current_line()} is of different losses for "
            "them. A device updates all weights that are trained, from the same losses. To leave some out, set "
            "requires_grad_(False) on them before the model is called; to drop all gradients, call "
            "optimizer.zero_grad()."
        )
    used = next((entry.used for entry in entries if entry.used is not None), None)
    if used is not None:
        return (
            f"The update at {current_line()} would use the gradients of the one made at {used} again, because "
            "nothing has cleared them since; they were on the device, and are gone. Call optimizer.zero_grad() "
            "after every optimizer.step(); to accumulate gradients over several backward calls, call step() once "
            "after them."
        )
    if not first.losses and (first.given or training.prepared):
        return (
            f"step() at {current_line()} follows no backward(), and gradients were made zero, not None, at "
            f"{first.zeros}: PyTorch would update weights with gradients of zero, by their momentum "
            "and weight decay, while a device updates after a backward pass alone. Call "
            "zero_grad(set_to_none=True), or step() after backward() only."
        )
    return None


def _reached_entries(entries: Sequence[Entry], pending: Sequence[Loss], training: FusedPrograms) -> List[Entry]:
    """Return the entries of parameters that have gradients, or would have them of the pending losses."""
    reached = {id(loss): training.reached([loss]) for loss in pending}
    found = []
    for entry in entries:
        of_entry = {key: not ids.isdisjoint(entry.ids) for key, ids in reached.items()}
        losses = [loss for loss in entry.losses if of_entry[id(loss)]]
        if losses or any(of_entry.values()) or entry.used or entry.zeros:
            found.append(dataclasses.replace(entry, losses=losses))
    return found or list(entries)


def refuse_spent(loss: Loss) -> None:
    """Refuse a loss whose gradients would flow through operations of an update that has run."""
    spent: Dict[Operation, Line] = {}
    for each in loss.operations:
        for leaf in each.leaves:
            if type(leaf) is Input and leaf.spent is not None:
                spent[each] = leaf.spent
    if not spent:
        return
    for operation in gradient_path(loss.value):
        if operation in spent:
            raise CaptureError(
                f"The loss at {loss.line} is computed from a value of {spent[operation]}, of which an update has run. "
                "PyTorch would go backward through that a second time. This is an error without retain_graph=True. "
                "With it, gradients are by the previous weights, in a graph that grows from step to step. On a device "
                "each update is a program of its own. Compute with value.detach() if only the number is needed, or "
                "call optimizer.step() once, after all operations of the loss."
            )
