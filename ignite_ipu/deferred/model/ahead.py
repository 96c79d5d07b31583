"""Fused updates that run before their `optimizer.step()`, for a read of a value that comes with them."""

from __future__ import annotations

import functools
from typing import Dict, List, Mapping, Optional, Sequence

from ignite_ipu.deferred.graph.operations import NORM, Operation, Value
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.buffers import BufferBook
from ignite_ipu.deferred.model.early_update import EarlyUpdate
from ignite_ipu.deferred.model.fused_update import FusedUpdate
from ignite_ipu.deferred.model.history import Made, TakenBack
from ignite_ipu.deferred.model.once import Once, UpdateMadeError
from ignite_ipu.deferred.model.processes import forget_average, note_backward
from ignite_ipu.deferred.tensor.reads import expected_loss, has_gone_backward, incomplete
from ignite_ipu.errors import CaptureError, OptimizerError
from ignite_ipu.program.user_code import current_line


def losses_ahead(update: FusedUpdate, value: Value, operations: Sequence[Operation]) -> Optional[Sequence[Loss]]:
    """Return the losses that have yet to go backward for the update of a value; None if no update can run for it."""
    if update.early is not None:
        update.early.check_confirmed()
        return None
    if update.makes_all and has_gone_backward(operations, update.loop) and incomplete(update.loop) is None:
        return ()
    ahead: List[Loss] = []
    evaluates = any(each.signature.evaluates for each in operations)  # which may go backward, or not
    if not (update.gradients.pending or evaluates) and update.loop.setup.postponed() is None:
        loss = expected_loss(value, current_line())
        ahead += [] if loss is None else [loss]
    if update.makes_all:
        return ahead if ahead and update.training.expects(ahead) else None
    # Other optimizers may use the losses: the update is the one before, or none.
    if not all(update.training.gradients.awaits(each) for each in operations if each.signature is NORM):
        return None
    losses = update.turn.reach.chosen([*update.gradients.pending, *ahead])
    made = {operation for loss in losses for operation in loss.operations}
    calls = {each for each in operations if each.signature.modes is not None and not each.done}
    return ahead if losses and calls <= made and update.training.expects(losses) else None


def run_ahead(update: FusedUpdate, losses: Sequence[Loss]) -> None:
    """Run an update before its `optimizer.step()`, for a read of a value; losses go backward for it before.

    In PyTorch they have not gone backward yet: the gradient book stays as it was until they do.

    Raises:
        CaptureError, OptimizerError: The device cannot make the update. Gradients are as they were.
    """
    loop, books = update.loop, update.books
    before = books.gradients.copy() if losses else []
    restore = loop.buffers.state()
    reached: Dict[Loss, Sequence[FusedUpdate]] = {}
    try:
        for loss in losses:
            reached[loss] = books.check_backward(loss)
        for entry in books.gradients.within(update.gradients.own) if losses else ():
            # Gradients of the update before may still be cleared.
            entry.used, entry.made = None, []
        for loss in losses:
            for each in reached[loss]:
                each.backward(loss)
            note_backward(loss)
        pending = update.check()
        if not pending:
            raise CaptureError(
                f"A value is read at {current_line()} before optimizer.step(), and the parameters of that optimizer "
                "have no gradients any more, so that it makes no update. Read the value before gradients are cleared."
            )
        optimizer, link, stepped = update.training.optimizer, update.training.link, update.turn.stepped
        back = None
        if update.keeps_before and optimizer is not None:
            chosen = update.turn.reach.chosen(pending)
            operations = [operation for loss in chosen for operation in loss.operations]
            restore = loop.buffers.state()
            if not loop.buffers.is_empty:
                loop.buffers.before_update(chosen, loop, None if update.makes_all else update.turn.reach.uses)
            _refuse_replayed(loop.buffers, operations)
            with update.being_made():
                back = TakenBack.of(loop.session, optimizer, link)
        through = [*losses, *[loss for loss in pending if loss.retained]]
        operands = [(each, each.leaves) for loss in through for each in loss.operations if not each.done]
        with Once(loop.session.weights.updates):
            made = update.run(pending, update.gradients.entries)
    except UpdateMadeError:
        raise
    except (CaptureError, OptimizerError):
        restore()
        books.gradients.entries = before if losses else books.gradients.entries
        raise
    back = back if made else None
    edits = loop.session.weights.detector.edits
    leave, line = loop.updates.leave_device, current_line()
    early = EarlyUpdate(line, restore, bool(losses), back, stepped, leave, list(made.values()), edits=edits)
    update.early = early
    for operation, leaves in operands:
        if not operation.live:  # until the step, gradients may flow through it from another loss than the expected one
            operation.stay_live(leaves)
            early.live.append(operation)
    if losses:
        books.gradients.entries = before
    else:
        books.gradients.use(update.gradients.own, early.line, made, update.training.clipping.norm)
    for loss in losses:
        loss.value.went_backward = functools.partial(_confirm, update, made, loss, reached[loss])
    loop.withheld.update = early


def _confirm(
    update: FusedUpdate, made: Mapping[Loss, Made], loss: Loss, reached: Sequence[FusedUpdate], retained: bool
) -> None:
    """Let a loss go backward, for the updates that it is of, of which one was made ahead."""
    early, books, uncleared = update.early, update.books, update.gradients.uncleared
    assert early is not None
    loss.retained = retained
    if uncleared is not None and early.can_be_taken_back:
        update.loop.now.updates.leave_device(f"The gradients of the update made at {uncleared} are used again.")
        update.loop.now.backward(loss)
        return
    update.loop.edits.look()
    try:
        for each in reached:
            each.training.modes.check_trained(loss, each.training.own)
    except CaptureError as error:
        update.loop.now.updates.leave_device(str(error), error)
        update.loop.now.backward(loss)
        return
    early.confirm(uncleared, retained)
    for each in reached:
        books.gradients.add(each.gradients.own, loss)
    books.add_to_unheld(loss)
    update.loop.setup.observer.went_backward(update.loop)
    books.gradients.use(update.gradients.own, early.line, made, update.training.clipping.norm)


def take_back(update: FusedUpdate) -> None:
    """Take the update back that ran before its `optimizer.step()`, if one did."""
    early, update.early = update.early, None
    if early is None or early.back is None:
        return
    early.back.put_back(update.loop.session)
    forget_average(update.loop.module)
    update.books.history.take_back(update.turn.stepped)
    update.turn.stepped = early.stepped
    for made in early.made:
        made.take_back()
        made.loss.value.went_backward = None
    early.restore()
    for entry in () if early.awaited else update.books.gradients.within(update.gradients.own):
        entry.losses, entry.made, entry.used = [made.loss for made in entry.made], [], None


def _refuse_replayed(buffers: BufferBook, operations: Sequence[Operation]) -> None:
    """Refuse an update that may be taken back, if buffers that it writes have their new values already."""
    replayed = next((each for each in operations if each.number in buffers.replays), None)
    if replayed is not None:
        raise CaptureError(
            f"A value is read at {current_line()} before optimizer.step(), and so were buffers that the call at "
            f"{replayed.line} writes. Read one of them after optimizer.step()."
        )
