"""The updates of a loop that the device makes: one fused step for each optimizer."""

from __future__ import annotations

import functools
from typing import AbstractSet, Any, Callable, FrozenSet, Iterable, List, Optional, Sequence

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # PyTorch's own, which a script's calls may be substituted for

from ignite_ipu.deferred.compiled.fused_programs import FusedPrograms
from ignite_ipu.deferred.graph.operations import Operation, Value
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.ahead import losses_ahead, run_ahead
from ignite_ipu.deferred.model.clipping import clip
from ignite_ipu.deferred.model.fused_update import Books, FusedUpdate
from ignite_ipu.deferred.model.gradient_reads import has_gradient, read_gradient, show_host_gradients, shows_gradient
from ignite_ipu.deferred.model.gradient_views import GradientViews, clear_those_of_the_host
from ignite_ipu.deferred.model.gradients import GradientBook
from ignite_ipu.deferred.model.history import History
from ignite_ipu.deferred.model.host_updates import HostUpdates
from ignite_ipu.deferred.model.leaving import leave_device
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.processes import note_backward
from ignite_ipu.errors import CaptureError
from ignite_ipu.optimizers.kinds import ON_THE_HOST
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.gradient_hooks import GradientHooks
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class FusedUpdates:
    """The fused updates of a loop.

    Attributes:
        books: The gradients, which stay on the device, and the updates by each optimizer.
        standby: Follows the calls for updates on the host, if the loop may change to these.
    """

    on_host = False

    def __init__(self, loop: Loop) -> None:
        self._loop, self._hooks = loop, GradientHooks()
        with DisableTorchFunctionSubclass():
            book = GradientBook(map(id, loop.module.parameters()))
        views = GradientViews(loop.module, loop.setup.clip_remedy, self)
        self.books = Books(loop, book, views, History())
        self.books.updates.append(FusedUpdate(self.books))
        self.standby = HostUpdates(loop) if loop.setup.config.update == "auto" else None

    @property
    def gradients(self) -> GradientViews:
        return self.books.views

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
        return list(dict.fromkeys(loss for update in (first, *others) for loss in update.pending))

    @property
    def is_ahead(self) -> bool:
        return any(update.early is not None for update in self.books.updates)

    @property
    def is_known(self) -> bool:
        return not self.is_ahead and all(update.is_known for update in self.books.updates)

    @property
    def has_trained(self) -> bool:
        known = any(update.training.prepared for update in self.books.updates)
        return known or any(entry.exists for entry in self.books.gradients.entries)

    @property
    def uncleared(self) -> Optional[Line]:
        return next((update.uncleared for update in self.books.updates if update.makes_all), None)

    @property
    def accumulates(self) -> Optional[bool]:
        found = {update.accumulates for update in self.books.updates}
        return None if None in found else any(found)

    @property
    def may_leave(self) -> bool:
        return self.standby is not None

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
        free.training.optimizer = optimizer
        free.look()
        for update in updates if self.take_turns else ():
            update.train_held()
            for entry in self.books.gradients.within(update.own):
                entry.losses = [loss for loss in entry.losses if update.reach.chosen([loss])]
        return free

    def holding(self, ids: AbstractSet[int]) -> FusedUpdate:
        """Return the update of a parameter, by its id in a set; any for one that no optimizer holds."""
        for update in self.books.updates:
            update.look()
            if not ids.isdisjoint(update.own):
                return update
        return self.books.updates[-1]

    def note_call(self, call: Operation) -> None:
        if self.standby is not None:
            self.standby.note_call(call)

    def note_write(self) -> None:
        if self.may_leave and any(not loss.value.operation.done for loss in self.pending):
            self.leave_device(f"Weights are written or frozen at {current_line()} between backward() and the step.")

    def backward(self, loss: Loss) -> None:
        hooked = self._hooked_name()
        if hooked:
            self.leave_device(f"There is a hook on the gradient of {hooked}, which runs on the host alone.")
            self._loop.updates.backward(loss)
            return
        reached: List[FusedUpdate] = []
        try:
            for update in self.books.updates:
                update.look()
                chosen = update.reach.chosen([loss])
                reached += [update] if chosen else []
                if update.early is not None or chosen:
                    update.check_backward(loss, chosen)
        except CaptureError as error:
            self.leave_device(str(error), error)
            self._loop.updates.backward(loss)
            return
        if not reached:
            raise CaptureError(
                f"The loss at {loss.line} trains no weights that an optimizer holds: its gradients would be used by "
                "nobody."
            )
        for update in reached:
            update.backward(loss)
        note_backward(loss)
        self.add_to_unheld(loss)

    def _hooked_name(self) -> str:
        """Return the name of a parameter with a hook on its gradient, "" if there is none."""
        parameters = self._loop.modes.parameters
        numbers = self._hooks.among(parameters)
        return next(iter(self.books.views.names([id(parameters[numbers[0]])])), "a weight") if numbers else ""

    def add_to_unheld(self, loss: Loss) -> None:
        """Add the gradients of a loss to those of parameters that no optimizer holds, which no update clears."""
        book = self.books.gradients
        if len(book.entries) == 1:
            return
        rest = (book.all & self._trained_in(loss)).difference(*[update.own for update in self.books.updates])
        for entry in book.within(rest) if rest else ():
            if any(not entry.ids.isdisjoint(self._trained_in(before)) for before in entry.losses):
                entry.unknown = "no optimizer holds the parameter, so its gradients of all losses so far add up"
            entry.losses = [loss]

    def _trained_in(self, loss: Loss) -> FrozenSet[int]:
        """Return the ids of the parameters that were trained when a loss was computed."""
        pairs = zip(self._loop.modes.parameters, self.books.updates[0].training.trained_in([loss]))
        return frozenset(id(parameter) for parameter, is_trained in pairs if is_trained)

    def read(self, value: Value, operations: Sequence[Operation]) -> Optional[Callable[[], None]]:
        updates = self.books.updates
        if self.may_leave and any(update.early is not None and update.early.awaited for update in updates):
            self.leave_device(f"Another value is read at {current_line()} before the loss of an update went backward.")
            return self._loop.updates.read(value, operations)
        # Where optimizers take turns, the one that stepped longest ago comes next.
        for update in sorted(updates, key=lambda update: update.order):
            losses = losses_ahead(update, value, operations)
            if losses is not None:
                return functools.partial(self.run_ahead, update.own, losses)
        return None

    def run_ahead(self, ids: AbstractSet[int], losses: Sequence[Loss]) -> None:
        update = self.holding(ids)
        if update.training.optimizer is not None:
            run_ahead(update, losses)
            return
        self._loop.find_optimizers()
        # Which may have joined the loop with another one.
        self._loop.now.updates.run_ahead(ids, losses)

    def read_norms(self, line: Line) -> bool:
        if self.may_leave:
            self.leave_device(f"The norm of gradients is read at {line} before the update is complete.")
            return True
        shown = [update for update in self.books.updates if show_host_gradients(update, line)]
        for update in shown:
            update.training.gradients.settle_norms()
        return bool(shown)

    def clip(self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float, given: Any) -> torch.Tensor:
        if self.may_leave or self.take_turns:
            parameters = list(parameters)
        try:
            return clip(self._update_with(parameters), parameters, max_norm, norm_type, given)
        except CaptureError as error:
            self.leave_device(str(error), error)
            return clip_grad_norm_(list(parameters), max_norm, norm_type)

    def _update_with(self, parameters: Iterable[torch.Tensor]) -> FusedUpdate:
        """Return the update of all parameters that are to be clipped."""
        for update in self.books.updates:
            update.look()
        found = [update for update in self.books.updates if update.trains_some(parameters)]
        if len(found) != 1:
            raise CaptureError(
                f"Gradients of {self._loop.name} are used at {current_line()} that are several optimizers', or none's: "
                "clip those of each optimizer's parameters by a call of its own."
            )
        return found[0]

    def zero_grad(self, module: nn.Module, set_to_none: bool) -> None:
        with DisableTorchFunctionSubclass():
            parameters = list(nn.Module.parameters(module))
        self.clear_gradients(frozenset(map(id, parameters)), set_to_none)
        clear_those_of_the_host(parameters, set_to_none)

    def clear_gradients(self, ids: FrozenSet[int], set_to_none: bool = True) -> None:
        """Clear the gradients of parameters on the device, to None or to zeros."""
        book, views, every = self.books.gradients, self.books.views, self.books.updates
        updates = [update for update in every if not ids.isdisjoint(update.own)]
        if self.may_leave and self._keeps_from_clearing(updates, ids):
            self.leave_device(f"Gradients that no update has used are cleared at {current_line()}.")
            clear_those_of_the_host([each for each in self._loop.modes.parameters if id(each) in ids], set_to_none)
            return
        if set_to_none:
            views.clear(ids, all(update.shows_used for update in updates))
        ahead = [update.early for update in every if update.early is not None and update.early.awaited]
        awaited = [loss for early in ahead for loss in early.losses]
        dropped = book.clear(ids, None if set_to_none else current_line())
        if awaited:
            # They go backward after this, for the updates of other optimizers, too.
            dropped = [loss for loss in dropped if loss not in awaited]
            for update in updates:
                for loss in awaited if update.early not in ahead else ():
                    if update.reach.chosen([loss]):
                        book.add(update.own, loss)
        for update in updates:
            update.cleared(dropped)
        if not any(entry.exists for entry in book.entries):
            self.books.history.forget()

    def _keeps_from_clearing(self, updates: Sequence[FusedUpdate], ids: FrozenSet[int]) -> bool:
        """Return whether clearing drops losses whose gradients may be seen, or an update that was made."""
        if any(update.early is not None and not update.early.awaited for update in updates):
            return True
        losses = [loss for entry in self.books.gradients.of(ids) for loss in entry.losses]
        return any(not loss.value.operation.done for loss in losses) or self.books.views.are_held(ids)

    def are_stale(self, call: Operation) -> bool:
        late = [update for update in self.books.updates if update.stepped >= call.number and not call.done]
        return any(update.reach.uses(call) for update in late)

    def leave_device(self, reason: str, error: Optional[Exception] = None) -> None:
        if self.standby is None:
            raise CaptureError(f"{reason} {ON_THE_HOST}") if error is None else error
        leave_device(self._loop, self.books, self.standby, reason)

    def has_gradient(self, parameter: torch.Tensor) -> bool:
        """Return whether PyTorch has a gradient of a parameter now."""
        return has_gradient(self.holding({id(parameter)}), parameter)

    def shows_gradient(self, parameter: torch.Tensor) -> bool:
        return shows_gradient(self.holding({id(parameter)}), parameter)

    def gradient_of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        if self._loop.now.updates is not self:
            return self._loop.now.updates.gradient_of(parameter)
        return read_gradient(self.holding({id(parameter)}), parameter)

    def replace_gradient(self, parameter: torch.Tensor, gradient: Optional[torch.Tensor]) -> None:
        """Forget the gradient of a parameter on the device, which the loop replaces by another or by None."""
        if gradient is not None and self.may_leave:
            self.leave_device(f"The gradient of a parameter is set at {current_line()}.")
            return
        self.clear_gradients(frozenset((id(parameter),)))

    def release_gradients(self, writes: bool) -> None:
        """Bring gradients to the host that the loop writes, or reads when the last update has not returned them."""
        if not self.may_leave:
            return
        if writes or not all(update.shows_used for update in self.books.updates if update.has_gradients):
            self.leave_device(f"Gradients are used at {current_line()}.")

    def merge(self, other: Any) -> None:
        books = other.books if isinstance(other, FusedUpdates) else None
        for before in books.updates if books is not None else ():
            if before.training.optimizer is not None:
                mine = self.update_of(before.training.optimizer)
                mine.early = mine.early or before.early
        if books is not None:
            self.books.gradients.merge(books.gradients)

    def go_on_from(self, before: Any) -> None:
        if not isinstance(before, FusedUpdates):
            return
        every = before.books.updates
        for update in every:
            # Of several optimizers each goes on; else one may follow that holds the weights of now.
            optimizer = update.training.optimizer if before.take_turns else None
            now = self.books.updates[0] if optimizer is None else self.update_of(optimizer)
            now.go_on_from(update)

    def forget_programs(self) -> None:
        for programs in self.programs:
            programs.forget_program()

    def discard(self, problem: str) -> None:
        for update in self.books.updates:
            update.discard(problem)
