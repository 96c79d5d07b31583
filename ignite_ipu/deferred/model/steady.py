"""The steady state of a loop: facts with which its events need no look at its books.

Clearing, `backward()` and `step()` look at everything that may have changed since the last update. In a steady loop
nothing has: after an update, `Steady` keeps the facts that these looks found. While they hold, an event changes the
gradient book and nothing else. Each event that does not find them as they were goes the ordinary way, which ends the
steady state.
"""

from __future__ import annotations

import operator
from typing import Any, Optional, Protocol, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from ignite_ipu.deferred.compiled.fused_programs import FusedPrograms
from ignite_ipu.deferred.events import IGNORING
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.operations import CLOCK, DIFFERENTIATED, USES
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.gradients import GradientBook
from ignite_ipu.deferred.model.held_parameters import HeldParameters, list_of_group
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.once import Once
from ignite_ipu.deferred.model.turns import Turn
from ignite_ipu.optimizers.step_hooks import of_scripts
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.data_parallel import Reducer
from ignite_ipu.torch_names.optimizers import GLOBAL_POST_HOOKS, GLOBAL_PRE_HOOKS, post_hooks_of, pre_hooks_of


class LastUpdate(Protocol):
    """The update by an optimizer, `FusedUpdate`, as its steady state sees it."""

    loop: Loop
    training: FusedPrograms
    books: Any
    early: Any
    shown: int
    turn: Turn
    held: HeldParameters

    def fail(self, losses: Sequence[Loss], error: BaseException, once: Once) -> None: ...


class Steady:
    """The facts of a loop with one optimizer that has just made an update of one loss; `of` finds them.

    Attributes:
        update: The updates of the optimizer.
    """

    def __init__(self, update: LastUpdate) -> None:
        loop, training, books = update.loop, update.training, update.books
        optimizer = training.optimizer
        assert optimizer is not None and training.trained is not None
        self.update, self._loop, self._training, self._optimizer = update, loop, training, optimizer
        self._books, self._edits = books, loop.edits
        self._book: GradientBook = books.gradients
        self._detector = detector = loop.session.weights.detector
        assert detector.accesses is not None
        self._accesses, self._looks, self._edited = detector.accesses, detector.looks, detector.edits
        self._handles, self._trained = RemovableHandle.next_id, training.trained
        self._all_modes, self._parameters, self._moments = loop.modes, loop.modes.parameters, loop.modes.trained()
        self._modes: Optional[ModesThen] = None  # of a call whose trained parameters are known to be those
        tables = GLOBAL_PRE_HOOKS, pre_hooks_of(optimizer), post_hooks_of(optimizer), GLOBAL_POST_HOOKS
        self._has_hooks = bool(of_scripts(*tables))
        self._groups, self._updates = len(optimizer.param_groups), loop.session.weights.updates
        self._lists = [(held, list(held)) for held in map(list_of_group, optimizer.param_groups)]

    @classmethod
    def of(cls, update: LastUpdate) -> Optional[Steady]:
        """Return the facts after an update, None if the next one needs a look at the books all the same."""
        loop, training, books = update.loop, update.training, update.books
        updates = loop.updates
        if training.own is not None or len(books.updates) > 1 or not training.repeats or training.trained is None:
            return None
        if loop.now is not loop or updates.on_host or update.early is not None or update.shown or update.held.beside:
            return None
        if books.history.kept or (updates.may_leave and books.history.watches(0)) or loop.edits.is_waiting:
            return None
        detector = loop.session.weights.detector
        if detector.accesses is None or detector.accesses.in_graphs or detector.in_graphs:
            return None  # a function of a weight is an access, so later ones are noticed
        if training.clipping.is_by_call or not books.views.known_none or books.hooks.among(loop.modes.parameters):
            return None
        made = cls(update)
        return made if len(books.gradients.entries) == 1 and made.holds() else None

    def holds(self) -> bool:
        """Return whether nothing has changed since that the books of the loop depend on."""
        detector, accesses, groups = self._detector, self._accesses, self._optimizer.param_groups
        if (
            accesses.any
            or detector.accesses is not accesses
            or detector.looks != self._looks
            or detector.edits != self._edited
            or self._edits.announced
            or RemovableHandle.next_id != self._handles
            or self._all_modes.parameters is not self._parameters
            or self._training.trained is not self._trained
            or Reducer.made
            or len(groups) != self._groups
        ):
            return False
        for group, (held, known) in zip(groups, self._lists):
            if group["params"] is not held or len(held) != len(known) or not all(map(operator.is_, held, known)):
                return False
        return True

    def clear(self, optimizer: torch.optim.Optimizer) -> bool:
        """Clear the gradients of the last update to None; returns False if it takes more."""
        (entry, *others), training, books = self._book.entries, self._training, self._books
        if others or entry.losses or entry.zeros is not None or entry.unknown is not None or entry.given:
            return False
        if optimizer is not self._optimizer or books.views.held or training.gradients.norms or not self.holds():
            return False
        entry.used, entry.made, entry.clip = None, [], None
        training.forget_losses()
        return True

    def backward(self, loss: Loss) -> bool:
        """Let the first loss since gradients were cleared go backward; returns False if it takes more."""
        (entry, *others), training, batch = self._book.entries, self._training, loss.batch
        if others or entry.losses or entry.used is not None or entry.zeros is not None or training.clipping.asked:
            return False
        if batch is None or batch.operations[0].number <= self.update.turn.stepped or USES or DIFFERENTIATED:
            return False
        if not self.holds() or self._loop.setup.postponed() is not None or self._books.views.appear():
            return False
        for operation in batch.operations:
            modes = operation.signature.modes
            if modes is not None and modes is not self._modes:
                if modes.trained != self._moments:
                    return False
                self._modes = modes
        entry.losses.append(loss)
        observer = self._loop.setup.observer
        if observer is not IGNORING:
            observer.went_backward(self._loop)
        return True

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Make the update of the one loss that went backward as the last one; returns False if it takes more."""
        (entry, *others), training, loop = self._book.entries, self._training, self._loop
        if others or len(entry.losses) != 1 or entry.used is not None or entry.zeros is not None or entry.given:
            return False
        if optimizer is not self._optimizer or self._has_hooks or training.clipping.asked:
            return False
        if loop.evaluations.waiting or not loop.buffers.is_empty or USES or not self.holds():
            return False
        losses, repeated, before = entry.losses, training.repeated, self._updates[0]
        try:
            if repeated is None or not repeated.run(losses[0]):
                return False
        except BaseException as error:
            loop.steady = None
            with Once(self._updates, before) as once:
                self.update.fail(losses, error, once)
                raise
        entry.losses, entry.used = [], current_line(above=2)
        self.update.turn.stepped = CLOCK.now
        return True
