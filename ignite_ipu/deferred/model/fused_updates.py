"""The updates of a loop that the device makes: one fused step for each optimizer."""

from __future__ import annotations

import functools
from typing import AbstractSet, Any, Callable, Dict, Optional, Sequence

import torch

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.compiled.fused_programs import FusedPrograms
from ignite_ipu.deferred.compiled.modes import is_earlier
from ignite_ipu.deferred.graph.operations import DIFFERENTIATED, Operation, Value
from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.deferred.graph.state import Older, Values, weights_of
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.ahead import losses_ahead, run_ahead
from ignite_ipu.deferred.model.fused_gradients import FusedGradients
from ignite_ipu.deferred.model.fused_update import Books, FusedUpdate
from ignite_ipu.deferred.model.host_updates import HostUpdates
from ignite_ipu.deferred.model.kept_weights import KeptWeights
from ignite_ipu.deferred.model.leaving import leave_device
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.once import UpdateMadeError
from ignite_ipu.deferred.model.processes import note_backward
from ignite_ipu.deferred.tensor.inputs import gradients_return, refuse_differentiated
from ignite_ipu.deferred.tensor.lost_gradients import lose
from ignite_ipu.errors import CaptureError, OptimizerError
from ignite_ipu.program.tensors.raw import plain, set_gradient
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.data_parallel import Reducer
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class FusedWeights:
    """The weights that calls of a loop have used whose updates are fused: the device has one value of each.

    Args:
        kept: Keeps previous values for updates on the host; None in a loop that may not change to these.
    """

    def __init__(self, loop: Loop, books: Books, kept: Optional[KeptWeights]) -> None:
        self._loop, self._books, self._kept = loop, books, kept
        self.note_call = None if kept is None else kept.note_call

    def awaits(self, model: Captured) -> bool:
        return self._kept is not None and self._kept.awaits(model)

    def note_write(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._kept is None:
            return
        updates = self._loop.updates
        if any(not loss.value.operation.done for loss in updates.pending):
            updates.leave_device(f"Weights are written or frozen at {current_line()} between backward() and the step.")
        self._kept.note_write(tensors)

    def note_view(self, tensor: torch.Tensor) -> None:
        if self._kept is not None:
            self._kept.note_view(tensor)
        elif self._loop.buffers.waiting:
            # A call that has yet to write buffers is replayed with the value of before a write through the view.
            self._loop.session.weights.to_host()
            self._loop.session.weights.detector.keep([tensor])

    def then(self, operation: Operation) -> Optional[Values]:
        computes_with_weights = operation.model is not None or weights_of(operation)
        return None if computes_with_weights and self.are_stale(operation) else []

    def note_changes(self, changed: Sequence[int], before: Optional[Older] = None) -> None:
        """The device changes them."""

    def are_stale(self, call: Operation) -> bool:
        if is_earlier(self._loop.modes, call):
            return True
        late = [update for update in self._books.updates if update.turn.stepped >= call.number and not call.done]
        return any(update.turn.reach.uses(call) for update in late)


class FusedUpdates:
    """The fused updates of a loop.

    Attributes:
        books: The gradients, which stay on the device, and the updates by each optimizer.
        standby: The updates on the host that the loop may change to; None if it may not.
        weights: Those that calls have used.
    """

    on_host = False

    def __init__(self, loop: Loop) -> None:
        self._loop, self.may_leave = loop, loop.setup.config.update == "auto"
        self.gradients = FusedGradients(loop)
        self.books = self.gradients.books
        self.standby = HostUpdates(loop) if self.may_leave else None
        self.weights = FusedWeights(loop, self.books, None if self.standby is None else self.standby.weights)
        if self.standby is not None:
            self.books.history.released = self.standby.weights.keep

    @property
    def programs(self) -> Sequence[FusedPrograms]:
        return [update.training for update in self.books.updates]

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        known = [update.training.optimizer for update in self.books.updates]
        return [optimizer for optimizer in known if optimizer is not None]

    @property
    def take_turns(self) -> bool:
        return len(self.books.updates) > 1

    @property
    def pending(self) -> Sequence[Loss]:
        first, *others = self.books.updates
        return list(dict.fromkeys(loss for update in (first, *others) for loss in update.gradients.pending))

    @property
    def is_ahead(self) -> bool:
        return any(update.early is not None for update in self.books.updates)

    @property
    def is_known(self) -> bool:
        return not self.is_ahead and all(loss.value.operation.done for loss in self.pending)

    @property
    def has_trained(self) -> bool:
        known = any(update.training.prepared for update in self.books.updates)
        return known or any(entry.exists for entry in self.books.gradients.entries)

    @property
    def accumulates(self) -> Optional[bool]:
        first = self.books.updates[0]
        if not first.makes_all:
            return False  # updates by several optimizers are compared with the last ones each time
        most = first.training.most_micro_batches
        return None if most is None else most > 1

    def update_of(self, optimizer: torch.optim.Optimizer) -> FusedUpdate:
        """Return the update by an optimizer, which has parameters of its own where another one is known."""
        updates = self.books.updates
        free: Optional[FusedUpdate] = None
        for update in updates:
            if update.training.optimizer is optimizer:
                return update
            free = update if update.training.optimizer is None else free
        if free is None:
            free = FusedUpdate(self.books)
            updates.append(free)
            self._loop.steady = None
        free.training.optimizer = optimizer
        free.look()
        for update in updates if self.take_turns else ():
            update.train_held()
            for entry in self.books.gradients.within(update.gradients.own):
                entry.losses = [loss for loss in entry.losses if update.turn.reach.chosen([loss])]
        return free

    def backward(self, loss: Loss) -> None:
        self._loop.steady = None
        self._loop.edits.look()
        if self.standby is not None and self.standby.weights.mixes(loss):
            self.leave_device(f"Memory of weights was written before the loss went backward at {loss.line}.")
            self._loop.updates.backward(loss)
            return
        if DIFFERENTIATED and gradients_return(loss):
            if self.may_leave:
                self.leave_device(f"Gradients of inputs that require them are computed at {loss.line}.")
                self._loop.updates.backward(loss)
                return
            refuse_differentiated(loss)
        try:
            reached = self.books.check_backward(loss)
        except CaptureError as error:
            self.leave_device(str(error), error)
            self._loop.updates.backward(loss)
            return
        if not reached:
            raise CaptureError(
                f"The loss at {loss.line} trains no weights that an optimizer holds: its gradients would stay unused."
            )
        for update in reached:
            update.backward(loss)
        if Reducer.made:
            note_backward(loss)
        if len(self.books.gradients.entries) > 1:
            self.books.add_to_unheld(loss)

    def awaits_more(self) -> Optional[str]:
        first, losses = self.books.updates[0], self.pending
        kept = next((loss for loss in losses if loss.retained), None)
        # Nothing goes backward after gradients were clipped.
        if kept is None or not first.makes_all or first.training.clipping.asked or first.training.resembles(losses):
            return None
        return (
            f"the loss at {kept.line} went backward with retain_graph=True, so that another one may follow it, and the "
            "update before was not made of such losses alone"
        )

    def read(self, value: Value, operations: Sequence[Operation]) -> Optional[Callable[[], None]]:
        updates = self.books.updates
        if any(update.is_being_made for update in updates):
            raise CaptureError(
                f"The update at {current_line()} reads a value that comes with it: a hyper-parameter of the optimizer, "
                "such as a learning rate, is computed from its loss or outputs. An update on the device has its "
                "hyper-parameters before. Compute them from values of the update before."
            )
        calls = [each for each in operations if each.model is not None]
        if self.may_leave and any(update.is_ahead_of(calls) for update in updates):
            self.leave_device(f"A value is read at {current_line()} before an update that has run for another one.")
            return self._loop.updates.read(value, operations)
        written = not all(map(self._loop.edits.older_than, calls))
        if self.may_leave and (written or any(map(self.weights.are_stale, calls))):
            self.leave_device(f"A value is read at {current_line()} that was computed with previous weights.")
            return self._loop.updates.read(value, operations)
        if any(map(self.weights.are_stale, calls)):
            return None
        # Where optimizers take turns, the one that stepped longest ago comes next.
        for update in sorted(updates, key=lambda update: update.turn.order):
            losses = losses_ahead(update, value, operations)
            if losses is not None:
                return functools.partial(self.run_ahead, update.gradients.own, losses)
        return None

    def run_ahead(self, ids: AbstractSet[int], losses: Sequence[Loss]) -> None:
        self._loop.steady = None
        update = self.books.holding(ids)
        if update.training.optimizer is not None:
            try:
                run_ahead(update, losses)
            except (CaptureError, OptimizerError) as error:
                self.leave_device(str(error), error)
                self._loop.updates.run_ahead(ids, losses)
            return
        loop = self._loop
        # The optimizers that train the models may join the loop with another one.
        loop.setup.join(loop.models, current_line())
        if not loop.now.updates.optimizers:
            raise CaptureError("The model's optimizer is not known: prepare it together with the model.")
        loop.now.updates.run_ahead(ids, losses)

    def leave_device(self, reason: str, error: Optional[Exception] = None) -> None:
        if isinstance(error, UpdateMadeError):
            raise error
        if self.standby is None:
            raise CaptureError(f"{reason} {ON_THE_HOST}") if error is None else error
        self._loop.steady = None
        with self._loop.modes.with_parts_of_before():
            leave_device(self._loop, self.books, self.standby, reason)

    def merge(self, other: Any) -> None:
        self._loop.steady = None
        if self.standby is not None:
            self.standby.merge(other.standby if isinstance(other, FusedUpdates) else other)
        if not isinstance(other, FusedUpdates):
            return
        numbers: Dict[int, int] = {}
        for number, before in enumerate(other.books.updates):
            if before.training.optimizer is not None:
                mine = self.update_of(before.training.optimizer)
                mine.early = mine.early or before.early
                mine.turn.go_on_from(before.turn)
                numbers[number] = self.books.updates.index(mine)
            before.note_given(before.gradients.own)
        self.books.gradients.merge(other.books.gradients)
        self.books.history.merge(other.books.history, numbers, other.books.last_step)

    def go_on_from(self, before: Any) -> None:
        if not isinstance(before, FusedUpdates):
            return
        every = before.books.updates
        for update in every:
            # Several optimizers each go on; a single one may be followed by another that holds the current weights.
            optimizer = update.training.optimizer if before.take_turns else None
            now = self.books.updates[0] if optimizer is None else self.update_of(optimizer)
            _go_on(now, update)

    def forget_programs(self) -> None:
        self._loop.steady = None
        for programs in self.programs:
            programs.forget_program()

    def discard(self, problem: str) -> None:
        for update in self.books.updates:
            update.discard(problem)


def _go_on(now: FusedUpdate, before: FusedUpdate) -> None:
    """Go on from the updates of a model that has other weights by now, of which some may be left."""
    book = now.books.gradients
    left = book.all.intersection(map(id, before.training.modes.parameters))  # also those that are frozen by now
    for entry in before.gradients.entries:
        if entry.exists:
            line = entry.losses[-1].line if entry.losses else entry.used
            given = entry.given | before.training.reached(entry.losses or None)
            why = f"the gradients are those of {line}, before weights of the model were replaced"
            for mine in book.within(entry.ids & left):
                mine.used, mine.zeros, mine.given = line, entry.zeros, given & mine.ids
                if line is not None:
                    mine.unknown = why
            gone = [each for each in before.training.modes.parameters if id(each) in (entry.ids & given) - left]
            if line is not None:
                lose(gone, f"At {current_line()} its parameter is no part of the model any more, and {why}.")
                continue
            with DisableTorchFunctionSubclass():
                for each in gone:
                    set_gradient(each, torch.zeros_like(plain(each)))
    if before.gradients.pending:
        before.discard("weights of the model were replaced")
    state = before.training.stream.read()
    if state is not None:
        now.training.stream.go_on_from(state)
