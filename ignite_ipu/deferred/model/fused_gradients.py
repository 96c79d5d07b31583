"""The gradients of a loop whose updates are fused: the device has them, and the gradient book has their losses."""

from __future__ import annotations

from typing import Any, FrozenSet, Iterable, List, Optional, Sequence, Set

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # PyTorch's own, which a script's calls may be substituted for

from ignite_ipu.deferred.model.clipping import clip
from ignite_ipu.deferred.model.fused_update import Books, FusedUpdate
from ignite_ipu.deferred.model.gradient_reads import (
    has_gradient,
    read_gradient,
    show_host_gradients,
    shown_gradients,
    shows_used,
)
from ignite_ipu.deferred.model.gradient_views import GradientViews, clear_those_of_the_host
from ignite_ipu.deferred.model.gradients import GradientBook
from ignite_ipu.deferred.model.history import History
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class FusedGradients:
    """The gradients of a loop whose updates are fused.

    Attributes:
        books: The book, the views of its gradients, and the updates that use them.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        with DisableTorchFunctionSubclass():
            book = GradientBook(map(id, all_parameters(loop.module)))
        views = GradientViews(loop.module, loop.session.weights, loop.setup.clip_remedy, self)
        self.books = Books(loop, book, views, History())
        self.books.updates.append(FusedUpdate(self.books))

    @property
    def shown(self) -> GradientViews:
        return self.books.views

    def read_norms(self, line: Line) -> bool:
        if self._loop.updates.may_leave:
            self._loop.updates.leave_device(f"The norm of gradients is read at {line} before the update is complete.")
            return True
        shown = [update for update in self.books.updates if show_host_gradients(update, line)]
        for update in shown:
            update.training.gradients.settle_norms()
        return bool(shown)

    def clip(self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float, given: Any) -> torch.Tensor:
        if self._loop.updates.may_leave or len(self.books.updates) > 1:
            parameters = list(parameters)
        try:
            update = self._update_with(parameters)
            if any(each.early is not None for each in self.books.updates if each is not update):
                self._loop.session.hooks.check_shown()
                if self._loop.updates.on_host:
                    return clip_grad_norm_(list(parameters), max_norm, norm_type)
            return clip(update, parameters, max_norm, norm_type, given)
        except CaptureError as error:
            self._loop.updates.leave_device(str(error), error)
            return clip_grad_norm_(list(parameters), max_norm, norm_type)

    def _update_with(self, parameters: Iterable[torch.Tensor]) -> FusedUpdate:
        """Return the update of all parameters that are to be clipped."""
        for update in self.books.updates:
            update.look()
        found = [
            each
            for each in self.books.updates
            if each.makes_all or any(id(one) in each.gradients.own for one in parameters)
        ]
        if len(found) != 1:
            raise CaptureError(
                f"Gradients of {self._loop.name} are used at {current_line()} that are several optimizers', or none's: "
                "clip those of each optimizer's parameters by a call of its own."
            )
        return found[0]

    def zero_grad(self, module: nn.Module, set_to_none: bool) -> None:
        with DisableTorchFunctionSubclass():
            parameters = list(nn.Module.parameters(module))
        self.clear(frozenset(map(id, parameters)), set_to_none)
        clear_those_of_the_host(parameters, set_to_none)

    def clear(self, ids: FrozenSet[int], set_to_none: bool = True) -> None:
        """Clear the gradients of parameters on the device, to None or to zeros."""
        book, views, every, self._loop.steady = self.books.gradients, self.books.views, self.books.updates, None
        updates = every if len(every) == 1 and ids is every[0].gradients.own else _sharing(every, ids)
        if self._loop.updates.may_leave and self._keeps_from_clearing(updates, ids):
            self._loop.updates.leave_device(f"Gradients that no update has used are cleared at {current_line()}.")
            clear_those_of_the_host([each for each in self._loop.modes.parameters if id(each) in ids], set_to_none)
            return
        if not set_to_none:
            for update in updates:
                update.note_given(ids)
        elif views.held:
            views.clear(ids, all(shows_used(update) for update in updates))
        dropped = book.clear(ids, None if set_to_none else current_line())
        for update in updates:
            update.cleared(dropped)
        if self.books.history.kept and not any([entry.exists for entry in book.entries]):
            self.books.history.forget([each.turn.stepped for each in every if each.early is not None])

    def _keeps_from_clearing(self, updates: Sequence[FusedUpdate], ids: FrozenSet[int]) -> bool:
        """Return whether clearing drops losses whose gradients may be seen, or an update that was made."""
        for update in updates:
            if update.early is not None and not update.early.awaited:
                return True
        for entry in self.books.gradients.entries:
            for loss in entry.losses:
                if not (loss.value.operation.done or ids.isdisjoint(entry.ids)):
                    return True
        views = self.books.views
        return bool(views.held) and views.are_held(ids)

    def exists(self, parameter: torch.Tensor) -> bool:
        """Return whether PyTorch has a gradient of a parameter now."""
        return has_gradient(self.books.holding({id(parameter)}), parameter)

    def shows(self, parameters: Sequence[torch.Tensor]) -> List[bool]:
        shown: Set[int] = set()
        for update, ids in self.books.holders(frozenset(map(id, parameters))):
            shown |= shown_gradients(update, ids)
        return [id(each) in shown for each in parameters]

    def of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        current = self._loop.now.updates.gradients
        if current is not self:
            return current.of(parameter)
        return read_gradient(self.books.holding({id(parameter)}), parameter)

    def bring_sum(self, parameter: torch.Tensor) -> None:
        entry = self.books.gradients.holding(id(parameter))
        if entry is not None and (entry.losses or entry.used) and all(self.shows([parameter])):
            line = entry.losses[-1].line if entry.losses else entry.used
            self._loop.updates.leave_device(
                f"A gradient is read at {current_line()} that the host has computed or set, and the loss of {line} has "
                "given the parameter another one, on the device: PyTorch adds them. Set parameter.grad = None before "
                "backward(), where the one of the host is not wanted."
            )

    def replace(self, parameter: torch.Tensor, gradient: Optional[torch.Tensor]) -> None:
        """Forget the gradient of a parameter on the device, which the loop replaces by another or by None."""
        if gradient is not None and self._loop.updates.may_leave:
            self._loop.updates.leave_device(f"The gradient of a parameter is set at {current_line()}.")
            return
        self.clear(frozenset((id(parameter),)))

    def release(self, writes: bool) -> None:
        """Bring gradients to the host that the loop writes, or reads when the last update has not returned them."""
        if not self._loop.updates.may_leave:
            return
        if writes or not all(shows_used(update) for update in self.books.updates if update.gradients.exist):
            self._loop.updates.leave_device(f"Gradients are used at {current_line()}.")


def _sharing(updates: Sequence[FusedUpdate], ids: FrozenSet[int]) -> Sequence[FusedUpdate]:
    """Return the updates of some of the parameters."""
    return [update for update in updates if not ids.isdisjoint(update.gradients.own)]
