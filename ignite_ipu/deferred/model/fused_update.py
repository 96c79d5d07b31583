"""Weight updates by one optimizer: the losses since the last one, and the time of the next."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from typing import AbstractSet, Callable, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.compiled.fused_programs import FusedPrograms
from ignite_ipu.deferred.graph.operations import USES, Operation, leave_uses
from ignite_ipu.deferred.graph.owners import MODEL, held_by
from ignite_ipu.deferred.graph.state import trained_in
from ignite_ipu.deferred.graph.step_graph import Loss, gradient_path
from ignite_ipu.deferred.graph.uses import keep_weights
from ignite_ipu.deferred.model.early_update import EarlyUpdate
from ignite_ipu.deferred.model.gradient_views import GradientViews
from ignite_ipu.deferred.model.gradients import Entry, GradientBook, OwnGradients, losses_of
from ignite_ipu.deferred.model.held_parameters import HeldParameters
from ignite_ipu.deferred.model.history import History, Made
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.obstacles import obstacle, reached_entries
from ignite_ipu.deferred.model.once import Once
from ignite_ipu.deferred.model.steady import Steady
from ignite_ipu.deferred.model.turns import Reach, Turn, forget
from ignite_ipu.errors import CaptureError, IPUError, listed
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.data_parallel import Reducer
from ignite_ipu.session.gradient_hooks import GradientHooks


@dataclasses.dataclass(eq=False)
class Books:
    """The gradients of a loop whose updates are fused, and their views.

    Attributes:
        updates: The updates by each optimizer; one by all parameters until optimizers are known.
    """

    loop: Loop
    gradients: GradientBook
    views: GradientViews
    history: History
    updates: List[FusedUpdate] = dataclasses.field(default_factory=list)
    hooks: GradientHooks = dataclasses.field(default_factory=GradientHooks)

    def refuse_hooks(self) -> None:
        """Raise a CaptureError if there are hooks on gradients of parameters, which a fused update cannot call."""
        parameters = self.loop.modes.parameters
        numbers = self.hooks.among(parameters)
        if numbers:
            name = next(iter(self.views.names([id(parameters[numbers[0]])])), "a weight")
            raise CaptureError(
                f"There is a hook on the gradient of {name}, which runs on the host alone. {ON_THE_HOST}"
            )

    def check_backward(self, loss: Loss) -> List[FusedUpdate]:
        """Return the updates that a loss is of; raise a CaptureError if a fused update cannot be of it."""
        if self.hooks.among(self.loop.modes.parameters):
            self.refuse_hooks()
        reached: List[FusedUpdate] = []
        for update in self.updates:
            update.look()
            chosen = update.turn.reach.chosen([loss])
            if chosen:
                reached.append(update)
            if update.early is not None or chosen:
                update.check_backward(loss, chosen)
        return reached

    def add_to_unheld(self, loss: Loss) -> None:
        """Add the gradients of a loss to those of parameters that no optimizer holds, which no update clears."""
        book = self.gradients
        rest = (book.all & trained_in(loss)).difference(*[update.gradients.own for update in self.updates])
        # Those of updates that have run are lost with these, if the parameters had any of them.
        pending = {id(each) for update in self.updates for each in update.gradients.pending} if rest else set()
        for entry in book.within(rest) if rest else ():
            used = [trained_in(before) for before in entry.losses if id(before) not in pending]
            given = entry.ids & frozenset().union(*used)
            if given:
                entry.given |= given
                entry.unknown = "no optimizer holds the parameter, so its gradients of all losses so far add up"
            entry.losses = [*[before for before in entry.losses if id(before) in pending], loss]

    @property
    def awaits_backward(self) -> bool:
        """True if an update was made ahead of the `backward()` of its loss, which is still to come."""
        return any(update.early is not None and update.early.awaited for update in self.updates)

    @property
    def are_clipped(self) -> bool:
        """True if the loop has clipped gradients that no update has used yet."""
        return any(update.training.clipping.asked and update.gradients.pending for update in self.updates)

    @property
    def last_step(self) -> int:
        """The moment of the last update, by `CLOCK`; 0 if none was made."""
        return max(update.turn.stepped for update in self.updates)

    def holding(self, ids: AbstractSet[int]) -> FusedUpdate:
        """Return the update of a parameter, by its id in a set; any for one that no optimizer holds."""
        for update in self.updates:
            update.look()
            if not ids.isdisjoint(update.gradients.own):
                return update
        return self.updates[-1]

    def holders(self, ids: FrozenSet[int]) -> List[Tuple[FusedUpdate, FrozenSet[int]]]:
        """Return the updates with those of some parameters that they have, as `holding` does."""
        for update in self.updates:
            update.look()
        *others, last = self.updates
        found: List[Tuple[FusedUpdate, FrozenSet[int]]] = []
        for update in others:
            found.append((update, ids & update.gradients.own))
            ids -= update.gradients.own
        return [*found, (last, ids)]


class FusedUpdate:
    """The updates by one optimizer, of a captured model or of several that are trained together.

    Attributes:
        training: The programs that make the updates.
        gradients: The gradients of the parameters that this optimizer trains.
        turn: The place of its updates among those of other optimizers.
        held: The parameters that it holds.
        shown: How many losses the gradients that the host has computed are of.
        early: The update that ran before its `optimizer.step()`, until that comes.
        is_being_made: Whether the update is being made, so that none can run for a read of a value.
    """

    is_being_made = False

    def __init__(self, books: Books) -> None:
        self.books = books
        self.loop = loop = books.loop
        self.training = FusedPrograms(loop.session, loop.setup.config, loop.modes, loop.places, loop.random_streams)
        self.gradients = OwnGradients(books.gradients)
        self.turn = Turn()
        self.early: Optional[EarlyUpdate] = None
        self.shown = 0
        self.held = HeldParameters(books.gradients)

    def look(self) -> None:
        """Notice which parameters the optimizer holds by now."""
        training = self.training
        if training.own is None and training.optimizer is not None:
            self.gradients.own = self.held.of(training.optimizer)

    @property
    def makes_all(self) -> bool:
        """True if it computes all that went backward: no other optimizer trains the loop's models."""
        return self.training.own is None

    def note_given(self, ids: FrozenSet[int]) -> None:
        """Note in the gradient book which of some parameters have gradients, before their losses are forgotten."""
        for entry in self.books.gradients.within(ids & self.gradients.own):
            if entry.losses and not entry.ids <= entry.given:
                entry.given |= self.training.reached(entry.losses) & entry.ids
            if entry.used is not None and not entry.ids <= entry.given:
                entry.given |= self.training.reached() & entry.ids

    def train_held(self) -> None:
        """Train the parameters that the optimizer holds now, and no others; those have optimizers of their own."""
        assert self.training.optimizer is not None
        own = self.gradients.own = held_by(self.training.optimizer)
        self.training.forget_program()
        self.training.own, self.turn.reach = own, Reach(own)

    @property
    def _others(self) -> List[FusedUpdate]:
        return [update for update in self.books.updates if update is not self]

    def check_backward(self, loss: Loss, chosen: Sequence[Loss]) -> None:
        """Raise a CaptureError if a fused update cannot be of a loss and of those that went backward before.

        `chosen` has the loss with the operations that this update makes, if it reaches it.
        """
        if self.early is not None:
            self.early.check_confirmed()
            raise self.early.error(
                f"now another loss went backward at {loss.line} without that step: the update was made from one "
                "micro-batch where several were meant. When gradients accumulate, keep loss.detach() and read it after "
                "optimizer.step()."
            )
        if self.training.clipping.asked and self.gradients.pending:
            raise CaptureError(
                f"backward() at {loss.line} follows a clip_grad_norm_ of the gradients so far: PyTorch adds the new "
                "gradients to the clipped ones, while a device clips all gradients of an update together. Clip once, "
                f"after the last backward(). {ON_THE_HOST}"
            )
        self.books.views.refuse_those_of_before(self.gradients.own)
        for each in chosen:
            for operation in each.operations:
                if operation.number <= self.turn.stepped and not operation.is_spent and self.turn.reach.uses(operation):
                    raise CaptureError(
                        f"The loss that goes backward at {loss.line} was computed at {operation.line}, and its weights "
                        "have been updated since. PyTorch computes gradients with the previous weights, or refuses it, "
                        "and a device computes a loss together with its update. Call the model again after "
                        "optimizer.step()."
                    )
        for each in chosen:
            self.training.modes.check_trained(each, self.training.own)

    def backward(self, loss: Loss) -> None:
        """Let a loss go backward, which was checked before."""
        entries = self.books.gradients.within(self.gradients.own)
        waits = any([entry.losses for entry in entries]) or self.loop.setup.postponed() is not None
        self.training.keep_inputs(loss, waits)
        for entry in entries:
            entry.losses.append(loss)
        if USES:
            leave_uses(loss.operations)

    def step(self) -> None:
        """Make the update of the losses that went backward; raises a CaptureError if a fused update cannot."""
        if self.early is not None:
            self.early.check_confirmed()
            self.loop.edits.look()
            self.early.check_unwritten(self.loop.session.weights.detector.edits)
            link = self.training.link
            if link is not None and link.changes():
                raise self.early.error(
                    "the optimizer's hyper-parameters were changed in between. Read the value after optimizer.step()."
                )
            pending = self.loop.buffers.pending() if self.loop.buffers.waiting else ()
            call = next((each for each in pending if each.number > self.turn.stepped), None)
            if call is not None:
                raise self.early.error(
                    f"the call at {call.line}, before that step, writes buffers, for which PyTorch computes with the "
                    "previous weights. Read the value after optimizer.step(), or call the model after it."
                )
            self.training.clipping.finish(self.early.line)
            self.early.finish()
            if self.early.can_be_taken_back:
                self.books.history.note_step(self.turn.stepped)
            self.turn.note_step()
            self.loop.withheld.update = None
            self.early = None
            return
        books, self.loop.steady = self.books, None
        self.look()
        books.views.refuse_those_of_the_host(self.gradients.own)
        entries = self.gradients.entries
        if not any([entry.exists for entry in entries]):
            return
        for other in () if self.training.own is None else self._others:
            if other.early is not None:
                other.early.check_confirmed()
        losses = self.check(entries)
        if losses:
            line, clipping = current_line(above=2), self.training.clipping
            asked = clipping.asked
            clipping.finish(None)
            with Once(self.loop.session.weights.updates):
                try:
                    made = self.run(losses, entries)
                except BaseException:
                    clipping.asked = asked
                    raise
                books.gradients.use(self.gradients.own, line, made, clipping.norm)
                self.loop.steady = Steady.of(self)

    def check(self, entries: Optional[Sequence[Entry]] = None) -> Sequence[Loss]:
        """Return the losses of the update that `optimizer.step()` means, none if its parameters have no gradients.

        Args:
            entries: The entries of its parameters, where they are known.

        Raises:
            CaptureError: The device cannot make it.
        """
        if self.books.hooks.among(self.loop.modes.parameters):
            self.books.refuse_hooks()
        training, entries = self.training, entries or self.gradients.entries
        losses, reason = losses_of(entries), None
        if len(entries) > 1 or entries[0].used is not None or not losses:
            entries = reached_entries(entries, losses, training)
            if not any([entry.exists for entry in entries]):
                return ()
            reason = obstacle(entries, losses, training, self.books.views)
        reason = training.averaging.obstacle(training.own) if reason is None and Reducer.made else reason
        if reason is None and len(self.books.updates) > 1 and self.is_watched:
            # The previous weights are to be kept, and the device has those of another optimizer's update.
            early = [other.early for other in self._others if other.early is not None]
            reason = next((each.between(current_line()) for each in early if each.can_be_taken_back), None)
        if reason is not None:
            raise CaptureError(f"{reason} {ON_THE_HOST}")
        return losses

    @property
    def is_watched(self) -> bool:
        """True if the pending update is one of the first of a loop that may go on with updates on the host."""
        return self.loop.now.updates.may_leave and self.books.history.watches(self.books.updates.index(self))

    @property
    def keeps_before(self) -> bool:
        """True if the weights before the pending update are kept: the device has no later ones by another's."""
        return self.is_watched and all(other.early is None for other in self._others)

    def is_ahead_of(self, calls: Sequence[Operation]) -> bool:
        """Return whether it has run before its step or its backward, and calls use, or may use, the weights before."""
        early = self.early
        if early is None or early.awaited:
            return early is not None
        return early.can_be_taken_back and any(each.number > self.turn.stepped for each in calls)

    def zero_grad(self, optimizer: torch.optim.Optimizer, set_to_none: bool) -> None:
        """Clear gradients as `zero_grad` of an optimizer that makes these updates."""
        ids = self.held.of(optimizer)
        self.books.views.zero_grad(optimizer, self.held.beside, set_to_none)
        self.loop.updates.gradients.clear(ids, set_to_none)

    def cleared(self, dropped: Sequence[Loss]) -> None:
        """Follow gradients that were cleared, by which losses were dropped that no update will be made of."""
        if self.early is not None and self.early.awaited:
            # They were the previous gradients; those of the update come with its `backward()`.
            return
        for entry in self.gradients.entries:
            if entry.used is not None:
                break
        else:
            self.training.forget_losses()
        if self.early is not None:
            raise self.early.error(
                f"now zero_grad() at {current_line()} asks to drop its gradients. Read values after optimizer.step(); "
                "gradients that no update follows are those of copy.deepcopy(model), on the host, in a loop with "
                "ipu_prepare or an IPUAccelerator."
            )
        awaited = self.training.gradients.norms
        if dropped or self.shown or awaited or (self.turn.older.kept and not self.books.awaits_backward):
            self.discard(f"its gradients were dropped by zero_grad() at {current_line()}", dropped)

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        other = self.training.optimizer
        if other is not None and (self.early is not None or not self.gradients.pending):
            what = f"for the value read at {self.early.line}" if self.early is not None else "already"
            raise CaptureError(
                f"{type(optimizer).__name__}.step() at {current_line()}: the update was made {what}, by another "
                f"optimizer of the same weights, a {type(other).__name__}. One optimizer makes one update: call "
                "zero_grad() and backward() before each step(), and read values after it."
            )
        if not self.follow(optimizer):
            raise CaptureError(
                f"{listed([type(each).__name__ for each in (other, optimizer)])} update the same weights in turns, and "
                "for each turn the step would be compiled again."
            )

    def follow(self, optimizer: torch.optim.Optimizer) -> bool:
        """Let another optimizer of some of the same weights make the updates from here on.

        Returns False for one that comes back after another one, where the host may make the updates instead.
        """
        if optimizer in self.turn.former and self.loop.now.updates.may_leave:
            return False
        if self.training.prepared and self.training.optimizer is not None:
            self.turn.former.add(self.training.optimizer)
        self.training.change_optimizer(optimizer)
        if not self.makes_all:
            self.train_held()
        return True

    def run(self, losses: Sequence[Loss], entries: Sequence[Entry]) -> Mapping[Loss, Made]:
        """Run the update of the pending losses, which are in entries; returns them as they were, if they are kept."""
        loop, self.shown = self.loop, 0
        zeros = [entry.zeros for entry in entries if entry.zeros is not None]
        self.training.zeroed = zeros[0] if zeros else None
        chosen, buffers = self.turn.reach.chosen(losses), loop.buffers
        operations = chosen[0].operations
        if len(chosen) != 1:
            operations = [operation for loss in chosen for operation in loss.operations]
        loop.edits.look()
        loop.edits.check(operations, loop)
        if loop.evaluations.waiting:
            loop.evaluations.before_weights_change(but=set(operations))
        if USES:
            keep_weights([loop])
        in_update = None if buffers.is_empty else buffers.in_update(operations)
        restore = None if in_update is None else buffers.state()
        if in_update is not None:
            buffers.before_update(chosen, loop, None if self.makes_all else self.turn.reach.uses)
        once = Once(loop.session.weights.updates)
        try:
            with loop.modes.with_parts_of_before(), self.being_made():
                with contextlib.nullcontext() if in_update is None else in_update:
                    made = self._run(losses, chosen)
        except BaseException as error:
            self.fail(losses, error, once, restore)
            raise
        self.turn.note_step()
        return made

    @contextlib.contextmanager
    def being_made(self) -> Iterator[None]:
        """Context in which the update is made."""
        before, self.is_being_made = self.is_being_made, True
        try:
            yield
        finally:
            self.is_being_made = before

    def fail(
        self, losses: Sequence[Loss], error: BaseException, once: Once, restore: Optional[Callable[[], None]] = None
    ) -> None:
        """Discard the losses of an update that failed, or restore the books for an update on the host."""
        if restore is not None and not once.is_made:
            restore()
        if isinstance(error, IPUError) and not once.is_made and self.loop.now.updates.may_leave:
            return
        self.books.gradients.drop(losses)
        for loss in losses:
            loss.discard(f"the step failed: {type(error).__name__}: {error}")

    def _run(self, losses: Sequence[Loss], chosen: Sequence[Loss]) -> Mapping[Loss, Made]:
        history, made = self.books.history, {}
        if self.keeps_before:
            history.keep(self.loop.session, self.books.updates.index(self))
            made = history.made(losses, [other.turn.stepped for other in self._others])
        if self.makes_all:
            self.training.run(losses)
        else:
            operations = [operation for loss in chosen for operation in loss.operations]
            others = [(other.turn, other.gradients.pending) for other in self._others]
            with self.turn.beside(others, losses, operations, self.loop.buffers) as keeps:
                self.training.run(chosen, keeps)
        return made

    def discard(self, problem: str, dropped: Optional[Sequence[Loss]] = None) -> None:
        """Discard losses that went backward, or all: their values will never be known, for a reason."""
        losses = list(self.gradients.pending) if dropped is None else dropped
        self.shown = 0
        self.books.gradients.drop(losses)
        if not self.gradients.pending:
            self.training.clipping.asked = False
            self.training.gradients.discard(problem)
            if not self.books.awaits_backward:
                self.turn.older.clear()
        awaited = {
            operation for other in self._others for loss in other.gradients.pending for operation in loss.operations
        }
        for loss in losses:
            loss.discard(problem, awaited)
            if not (self.makes_all or loss.retained):
                forget(set(gradient_path(loss.value)) - awaited)


def known_update(optimizer: torch.optim.Optimizer) -> Optional[FusedUpdate]:
    """Return the update by an optimizer that has made the last one on the device; None if it takes more to find it."""
    known: Optional[weakref.ref[FusedUpdate]] = optimizer.__dict__.get(MODEL)
    update = None if known is None else known()
    if update is None or update.training.trained is None:
        return None
    loop = update.loop
    return None if loop.now is not loop or loop.updates.on_host else update
