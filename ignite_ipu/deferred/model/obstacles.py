"""Reasons why the device cannot make an update: gradients of unlike stories, and used ones."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from ignite_ipu.deferred.compiled.fused_programs import FusedPrograms
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.gradient_views import GradientViews
from ignite_ipu.deferred.model.gradients import Entry
from ignite_ipu.errors import listed
from ignite_ipu.program.user_code import current_line


def obstacle(
    entries: Sequence[Entry], pending: Sequence[Loss], training: FusedPrograms, views: GradientViews
) -> Optional[str]:
    """Return why the device cannot make the update that `optimizer.step()` means, None if it can.

    Args:
        entries: Those of the optimizer's parameters, some of which exist, by `reached_entries`.
        pending: Losses that went backward and of which no update has been made.
    """
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


def reached_entries(entries: Sequence[Entry], pending: Sequence[Loss], training: FusedPrograms) -> Sequence[Entry]:
    """Return the entries of parameters that have gradients, or would have them of the pending losses."""
    if len(entries) == 1:
        return entries
    reached = {id(loss): training.reached([loss]) for loss in pending}
    found = []
    for entry in entries:
        of_entry = {key: not ids.isdisjoint(entry.ids) for key, ids in reached.items()}
        losses = [loss for loss in entry.losses if of_entry[id(loss)]]
        if losses or any(of_entry.values()) or entry.used or entry.zeros:
            found.append(dataclasses.replace(entry, losses=losses))
    return found or list(entries)
