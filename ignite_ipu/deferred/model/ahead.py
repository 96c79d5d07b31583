"""Fused updates that run before their `optimizer.step()`, for a read of a value that comes with them."""

from __future__ import annotations

import dataclasses
import functools
from typing import List, Mapping, Optional, Sequence

from ignite_ipu.deferred.graph.operations import Operation, Value
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.early_update import EarlyUpdate
from ignite_ipu.deferred.model.fused_update import FusedUpdate
from ignite_ipu.deferred.model.history import Made, TakenBack
from ignite_ipu.deferred.model.processes import forget_average
from ignite_ipu.deferred.tensor.reads import expected_loss, has_gone_backward, incomplete
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import current_line


def losses_ahead(update: FusedUpdate, value: Value, operations: Sequence[Operation]) -> Optional[Sequence[Loss]]:
    """Return what has yet to go backward for an update that a value comes with; None if none can run for it."""
    if update.early is not None:
        update.early.check_confirmed()
        return None
    if update.makes_all and has_gone_backward(operations, update.loop) and incomplete(update.loop) is None:
        return ()
    ahead: List[Loss] = []
    if not update.pending and update.loop.postponed is None:
        loss = expected_loss(value, current_line())
        ahead += [] if loss is None else [loss]
    if update.makes_all:
        return ahead if ahead and update.training.expects(ahead) else None
    # Other optimizers may use the losses: the update is the one before, or none.
    losses = update.reach.chosen([*update.pending, *ahead])
    made = {operation for loss in losses for operation in loss.operations}
    calls = {each for each in operations if each.signature.modes is not None and not each.done}
    return ahead if losses and calls <= made and update.training.expects(losses) else None


def run_ahead(update: FusedUpdate, losses: Sequence[Loss]) -> None:
    """Run an update before its `optimizer.step()`, for a read of a value; losses go backward for it before.

    Raises:
        CaptureError: The device cannot make the update. Gradients are as they were.
    """
    loop, books, uncleared = update.loop, update.books, None
    entries = update.entries
    before = [dataclasses.replace(entry) for entry in entries] if losses else []
    if losses:
        # Gradients of the update before may still be cleared: in PyTorch there are none of this one yet.
        uncleared = update.uncleared
        for entry in entries:
            entry.used, entry.made = None, []
    restore = loop.buffers.state_of(())
    try:
        for loss in losses:
            update.check_backward(loss, update.reach.chosen([loss]))
        for loss in losses:
            loop.backward(loss)
        pending = update.check()
        optimizer, link, stepped = update.training.optimizer, update.training.link, update.stepped
        back = None
        watched = books.history.watches(books.updates.index(update))
        if update.loop.now.updates.may_leave and watched and optimizer is not None:
            chosen = update.reach.chosen(pending)
            operations = [operation for loss in chosen for operation in loss.operations]
            loop.buffers.refuse_replayed(operations)
            restore = loop.buffers.state_of(operations)
            update.settle_calls(chosen)
            back = TakenBack.of(loop.session, optimizer, link)
        made = update.run(pending)
    except CaptureError:
        restore()
        books.gradients.drop(losses)
        for each in before:
            for entry in books.gradients.within(each.ids):
                entry.used, entry.made = each.used, each.made
        raise
    own = (uncleared, back, stepped, before, loop.updates.leave_device, losses, list(made.values()))
    update.early = EarlyUpdate(current_line(), bool(losses), *own)
    books.gradients.use(update.own, update.early.line, made, update.training.clipping.norm)
    for loss in losses:
        loss.value.went_backward = functools.partial(_confirm, update, made, loss)
    loop.withheld.update = update.early


def _confirm(update: FusedUpdate, made: Mapping[Loss, Made], loss: Loss) -> None:
    """Note that a loss goes backward of which the update was made ahead."""
    assert update.early is not None
    if update.early.uncleared is not None and update.early.can_be_taken_back:
        reason = f"The gradients of the update made at {update.early.uncleared} are used again."
        update.loop.now.updates.leave_device(reason)
        update.loop.now.backward(loss)
        return
    update.early.confirm()
    for entry in update.books.gradients.within(update.own):
        entry.losses, entry.used, entry.zeros = [], update.early.line, None
        entry.made, entry.clip = list(made.values()), update.training.clipping.norm


def take_back(update: FusedUpdate) -> None:
    """Take the update back that ran before its `optimizer.step()`, if one did."""
    early, update.early = update.early, None
    if early is None or early.back is None:
        return
    early.back.put_back(update.loop.session)
    forget_average(update.loop.module)
    update.stepped = early.stepped
    entries = update.books.gradients.within(update.own)
    for made in early.made:
        made.take_back()
        made.loss.value.went_backward = None
        calls = [each for each in made.loss.operations if each.signature.writes]
        update.loop.buffers.waiting.update({call.number: call for call in calls})
    for entry in entries:
        entry.losses = [] if early.awaited else [made.loss for made in entry.made]
        entry.made, entry.used = [], None
    for before in early.before if early.awaited and early.uncleared is not None else ():
        for entry in update.books.gradients.within(before.ids):
            entry.used, entry.made = before.used, before.made
