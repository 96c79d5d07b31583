"""Reads of gradients that fused updates keep on the device: `parameter.grad`, whether there is one, and its values."""

from __future__ import annotations

from typing import FrozenSet, Optional, Set

import torch

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.model.fused_update import FusedUpdate
from ignite_ipu.deferred.model.gradients import Entry, losses_of
from ignite_ipu.deferred.tensor.reads import incomplete
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import Line, current_line


def read_gradient(update: FusedUpdate, parameter: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the gradient of a parameter as PyTorch has it now, if any; the update runs for it if needed."""
    training, entry = update.training, _entry_of(update, parameter)
    if update.loop.now.updates.may_leave and entry is not None and not (entry.used and _has_returned(update)):
        update.loop.now.updates.leave_device(f"Gradients are read at {current_line()}.")
        return update.loop.now.updates.gradients.of(parameter)
    if entry is not None and entry.losses:
        line, pending = current_line(), update.gradients.pending
        of_updates = pending if update.makes_all else update.loop.updates.pending
        dropped = next((loss for loss in entry.losses if loss not in of_updates), None)
        among = frozenset([id(parameter)])
        if dropped is not None and among.isdisjoint(training.reached(entry.losses, among)):
            return None
        if dropped is not None:
            raise CaptureError(
                f"A gradient is read at {line} of the loss that went backward at {dropped.line}, for a parameter that "
                "no optimizer holds, and the gradients of those that one holds were cleared since: no update on the "
                "device is of that loss any more. Read it before zero_grad(); or, where it is not wanted, freeze the "
                f"parameter by requires_grad_(False) before the model is called. {ON_THE_HOST}"
            )
        expected = update.makes_all or training.expects(update.turn.reach.chosen(pending))
        if not expected or (update.gradients.uncleared and not update.makes_all):
            raise CaptureError(
                f"A gradient is read at {line} of a loss that went backward at {entry.losses[-1].line}, for one of "
                "several optimizers, before its step(). The other losses of its update are unknown. Read it after "
                f"that step(). {ON_THE_HOST}"
            )
        update.check()
        training.gradients.want(str(line))
        if not show_host_gradients(update, line):
            update.loop.updates.run_ahead(update.gradients.own, ())
            return update.loop.now.updates.gradients.of(parameter)
    if entry is not None and entry.unknown is not None:
        raise CaptureError(f"A gradient is read at {current_line()}, but {entry.unknown}. {ON_THE_HOST}")
    if entry is None:
        return None
    zeros = torch.zeros_like(plain(parameter)) if id(parameter) in entry.given else None
    if not entry.of_losses:
        return zeros
    if update.early is not None:
        update.early.check_confirmed()
    awaits_step = update.early is not None or entry.losses
    found = training.gradients.of(parameter, training.clipping.so_far if awaits_step else training.clipping.norm)
    return zeros if found is None else found


def _entry_of(update: FusedUpdate, parameter: torch.Tensor) -> Optional[Entry]:
    """Return the entry of a parameter in the gradient book, None where PyTorch has no gradient of it now."""
    entry = update.books.gradients.holding(id(parameter))
    return entry if entry is not None and entry.exists else None


def shows_used(update: FusedUpdate) -> bool:
    """Return whether the gradients that the last update used are there to be shown."""
    entries = update.gradients.entries
    used = any(entry.used is not None for entry in entries) and not losses_of(entries)
    return used and _has_returned(update)


def show_host_gradients(update: FusedUpdate, line: Line) -> bool:
    """Compute the gradients of the losses so far on the host, if more may follow before the update.

    Returns False if the update can run for them: by the known behaviour of the loop, it is complete.
    """
    complete = incomplete(update.loop) is None and update.loop.updates.accumulates is False
    if complete or not update.makes_all or not update.loop.reads.computes_on_host(line):
        return False
    pending = update.gradients.pending
    if update.shown != len(pending):
        operations = [operation for loss in pending for operation in loss.operations]
        update.loop.edits.look()
        update.loop.edits.check(operations, update.loop, "The gradient")
        with update.loop.buffers.on_host(operations):
            update.training.gradients.compute(pending)
        update.shown, update.loop.steady = len(pending), None
    return True


def has_gradient(update: FusedUpdate, parameter: torch.Tensor) -> bool:
    """Return whether PyTorch has a gradient of a parameter now: whether `parameter.grad` is not None."""
    entry, found = _entry_of(update, parameter), update.training.gradients
    if entry is None:
        return False
    if entry.losses:
        if not update.loop.now.updates.may_leave:
            found.look_for_readers()
        if found.wanted and not update.loop.now.updates.may_leave and update.makes_all:
            return read_gradient(update, parameter) is not None
    return bool(shown_gradients(update, frozenset([id(parameter)])))


def shown_gradients(update: FusedUpdate, ids: FrozenSet[int]) -> Set[int]:
    """Return those of some parameters of an update that have gradients by PyTorch's rules now.

    The gradient book alone is asked, without a download or a search for readers of gradients.
    """
    training = update.training
    found: Set[int] = set()
    for entry in update.books.gradients.entries:
        own = ids & entry.ids if entry.exists else frozenset()
        found |= own & entry.given
        if entry.losses and not own <= found:
            found |= own & training.reached(entry.losses, own)
        if entry.used is not None and not own <= found:
            returned = _has_returned(update)
            found |= own & (training.gradients.returned if returned else training.reached(None, own))
    return found


def _has_returned(update: FusedUpdate) -> bool:
    """Return whether the gradients that the device has brought back are those of the gradient book."""
    awaits = update.early is not None and update.early.awaited
    return update.training.gradients.available and not awaits
