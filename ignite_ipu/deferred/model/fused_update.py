"""Weight updates by one optimizer: what has gone backward since the last, and when the next runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from typing import Any, Container, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.compiled.training import CapturedTraining
from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CLOCK, NORM, USES, Operation, Value, keep_inputs, keep_weights
from ignite_ipu.deferred.graph.owners import held_by, held_tensors
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.early_reads import EarlyUpdate, expected_loss, incomplete
from ignite_ipu.deferred.model.gradient_views import GradientViews, clear_those_of_the_host
from ignite_ipu.deferred.model.gradients import Entry, GradientBook
from ignite_ipu.deferred.model.history import History, Made, TakenBack
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.turns import (
    Everything,
    Older,
    Reach,
    Values,
    begin_again,
    forget,
    gradient_path,
    keep_buffers,
)
from ignite_ipu.deferred.tensor.routing import has_gone_backward
from ignite_ipu.deferred.tensor.tensor import deferred_results
from ignite_ipu.errors import CaptureError, IPUError, listed
from ignite_ipu.optimizers.kinds import ON_THE_HOST
from ignite_ipu.program.tensors.raw import gradient_of, plain
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_ORDER = itertools.count(1)


@dataclasses.dataclass(eq=False)
class Books:
    """The gradients of a loop whose updates are fused, and what shows them.

    Attributes:
        updates: The updates by each optimizer; one by all parameters until optimizers are known.
    """

    loop: Loop
    gradients: GradientBook
    views: GradientViews
    history: History
    updates: List[FusedUpdate] = dataclasses.field(default_factory=list)


class FusedUpdate:
    """The updates by one optimizer, of a captured model or of several that are trained together.

    Attributes:
        training: What runs the updates.
        early: The update that ran before its `optimizer.step()`, until that comes.
        reach: Finds the operations of losses that this optimizer's update makes.
        stepped, order: When the last update ran, by `CLOCK`; and its number among those of several optimizers.
    """

    def __init__(self, books: Books) -> None:
        self._books, self._loop = books, books.loop
        loop = books.loop
        self.training = CapturedTraining(loop.session, loop.setup.config, loop.modes, loop.places)
        self.early: Optional[EarlyUpdate] = None
        # How many losses the gradients that the host has computed are of.
        self._shown = 0
        self.reach: Reach = Everything()
        self.stepped = self.order = 0
        # What tells that an optimizer holds the same as before, and the ids of that.
        self._held: Tuple[Any, FrozenSet[int]] = ((), frozenset())
        # Weights of other optimizers before their steps, with which what is pending has been computed.
        self._older: Dict[FusedUpdate, Older] = {}

    @property
    def is_current(self) -> bool:
        """True unless the loop has become a part of another one."""
        return self._loop.now is self._loop

    @property
    def own(self) -> FrozenSet[int]:
        """The ids of the parameters that this optimizer trains: all, until it is known."""
        training = self.training
        if training.own is not None:
            return training.own
        return self._books.gradients.all if training.optimizer is None else self.held_by(training.optimizer)

    @property
    def entries(self) -> List[Entry]:
        """The entries in the gradient book of this optimizer's parameters."""
        return self._books.gradients.of(self.own)

    @property
    def pending(self) -> Sequence[Loss]:
        """Losses that went backward and of which no update has been made."""
        first, *others = self.entries
        if not others:
            return first.losses
        return list(dict.fromkeys(loss for entry in (first, *others) for loss in entry.losses))

    @property
    def uncleared(self) -> Optional[Line]:
        """Line of the last update, as long as its gradients have not been cleared."""
        return next((entry.used for entry in self.entries if entry.used is not None), None)

    @property
    def zeroed(self) -> Optional[Line]:
        """Line at which gradients were last made zero instead of None, if they were."""
        return next((entry.zeros for entry in self.entries if entry.zeros is not None), None)

    @property
    def makes_all(self) -> bool:
        """True if it computes all that went backward: no other optimizer trains the loop's models."""
        return self.training.own is None

    def train_held(self) -> None:
        """Train the parameters that the optimizer holds now, and no others; those have optimizers of their own."""
        assert self.training.optimizer is not None
        own = held_by(self.training.optimizer)
        self.training.forget_program()
        self.training.own, self.reach = own, Reach(own)

    @property
    def accumulates(self) -> Optional[bool]:
        """True if an update so far was made from several micro-batches; None before the first."""
        if not self.makes_all:
            return False  # they are compared with the last update each time
        most = self.training.most_micro_batches
        return None if most is None else most > 1

    @property
    def has_gradients(self) -> bool:
        """True if there are gradients that an update has used or will use."""
        return bool(self.uncleared or self.pending)

    def trains_some(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Return whether it is the update of any of some parameters."""
        return self.makes_all or any(id(parameter) in self.own for parameter in parameters)

    @property
    def _others(self) -> List[FusedUpdate]:
        return [turn for turn in self._books.updates if turn is not self]

    @property
    def is_known(self) -> bool:
        """True if all that went backward for the coming update was computed for those of other optimizers."""
        return all(loss.value.operation.done for loss in self.pending)

    def go_on_from(self, before: FusedUpdate) -> None:
        """Go on from the updates of a model that has other weights by now, of which some may be left."""
        modes = before.training.modes
        left = {id(parameter) for parameter, trained in zip(modes.parameters, modes.trained()) if trained}
        left &= self._books.gradients.all
        for entry in before.entries:
            if entry.exists:
                line = entry.losses[-1].line if entry.losses else entry.used
                for mine in self._books.gradients.within(entry.ids & left):
                    mine.used, mine.zeros = line, entry.zeros
        if before.pending:
            before.discard("weights of the model were replaced")
        state = before.training.random_state()
        if state is not None:
            self.training.set_random_state(state)

    def chosen(self, losses: Sequence[Loss]) -> List[Loss]:
        """Return losses with the operations that this optimizer's update makes; without those that do not reach it."""
        return [loss for loss in map(self.reach.trained, losses) if loss is not None]

    def check_backward(self, loss: Loss) -> None:
        """Raise a CaptureError if a fused update cannot be of a loss and of what went backward before."""
        if self.early is not None:
            self.early.check_confirmed()
            raise self.early.error(
                f"now another loss went backward at {loss.line} without that step: the update was made from one "
                "micro-batch where several were meant. When gradients accumulate, keep loss.detach() and read it after "
                "optimizer.step()."
            )
        _refuse_spent(loss)
        if self.training.clipped and self.pending:
            raise CaptureError(
                f"backward() at {loss.line} follows a clip_grad_norm_ of the gradients so far: PyTorch adds the new "
                "gradients to the clipped ones, while a device clips all gradients of an update together. Clip once, "
                f"after the last backward(). {ON_THE_HOST}"
            )
        self._books.views.refuse_those_of_before(self.own)

    def backward(self, loss: Loss) -> None:
        """Let a loss go backward, which was checked before."""
        self._loop.edits.look()
        for chosen in self.chosen([loss]):
            self.training.modes.check_trained(chosen, self.training.own)
        keeps = self.training.keeps_inputs
        if keeps or self.pending or self.training.accumulates or self._loop.postponed is not None:
            keep_inputs(loss.operations, keeps)
        self._books.gradients.add(self.own, loss)
        if USES:
            USES.difference_update(loss.operations)

    def _obstacle(self) -> Optional[str]:
        """Return why the device cannot make the update that `optimizer.step()` means, None if it can."""
        entries = self.entries
        if len(entries) == 1 and entries[0].used is None and entries[0].losses:
            return None
        views = self._books.views
        if len(entries) > 1:
            entries = self._reached_entries(entries)
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
        used = self.uncleared
        if used is not None:
            return (
                f"The update at {current_line()} would use the gradients of the one made at {used} again, because "
                "nothing has cleared them since; they were on the device, and are gone. Call optimizer.zero_grad() "
                "after every optimizer.step(); to accumulate gradients over several backward calls, call step() once "
                "after them."
            )
        if not first.losses and self.training.prepared:
            return (
                f"step() at {current_line()} follows no backward(), and gradients were made zero, not None, at "
                f"{first.zeros}: PyTorch would update weights with gradients of zero, by their momentum "
                "and weight decay, while a device updates after a backward pass alone. Call "
                "zero_grad(set_to_none=True), or step() after backward() only."
            )
        return None

    @property
    def may_leave(self) -> bool:
        """True if updates may be made on the host from some moment on."""
        return self._loop.now.updates.may_leave

    def leave_device(self, reason: str, error: Optional[Exception] = None) -> None:
        """Make updates on the host from here on, for a reason; raise an error instead if that is not allowed."""
        self._loop.now.updates.leave_device(reason, error)

    def _reached_entries(self, entries: Sequence[Entry]) -> List[Entry]:
        """Return the entries of parameters that have gradients, or would have them of the pending losses."""
        pending = self.pending
        reached = {id(loss): self.training.reached([loss]) for loss in pending}
        found = []
        for entry in entries:
            of_entry = {key: not ids.isdisjoint(entry.ids) for key, ids in reached.items()}
            losses = [loss for loss in entry.losses if of_entry[id(loss)]]
            if losses or any(of_entry.values()) or entry.used or entry.zeros:
                found.append(dataclasses.replace(entry, losses=losses))
        return found or list(entries)

    def step(self) -> None:
        """Make the update of what went backward; a CaptureError if a fused update cannot."""
        if self.early is not None:
            self.early.check_confirmed()
            link = self.training.link
            if link is not None and link.changes():
                raise self.early.error(
                    "the optimizer's hyper-parameters were changed in between. Read the value after optimizer.step()."
                )
            self.training.finish_update(self.early.line)
            self._loop.session.hooks.withheld = None
            self.early = None
            return
        self._books.views.refuse_those_of_the_host(self.own)
        if not any(entry.exists for entry in self.entries):
            return
        self._check_update()
        if self.pending:
            line, clipped = current_line(above=2), self.training.clipped
            self.training.finish_update(None)
            try:
                made = self._run()
            except BaseException:
                self.training.clipped = clipped
                raise
            self._books.gradients.use(self.own, line, made, self.training.max_grad_norm)

    def confirm(self, made: Mapping[Loss, Made]) -> None:
        """Note that the losses go backward of which the update was made ahead."""
        assert self.early is not None
        self.early.confirm()
        for entry in self._books.gradients.within(self.own):
            entry.losses, entry.used, entry.zeros = [], self.early.line, None
            entry.made, entry.clip = list(made.values()), self.training.max_grad_norm

    def take_back(self) -> None:
        """Take the update back that ran before its `optimizer.step()`, if one did."""
        early, self.early = self.early, None
        if early is None or early.back is None:
            return
        early.back.put_back(self._loop.session)
        self.stepped = early.stepped
        entries = self._books.gradients.within(self.own)
        for made in {made.loss: made for entry in entries for made in entry.made}.values():
            made.take_back()
            made.loss.value.went_backward = None
            calls = [each for each in made.loss.operations if each.signature.writes]
            self._loop.buffers.waiting.update({call.number: call for call in calls})
        for entry in entries:
            entry.losses = [] if early.awaited else [made.loss for made in entry.made]
            entry.made, entry.used = [], None
        for before in early.before if early.awaited and early.uncleared is not None else ():
            for entry in self._books.gradients.within(before.ids):
                entry.used, entry.made = before.used, before.made

    def _check_update(self) -> None:
        reason = self._obstacle()
        if reason is not None:
            raise CaptureError(f"{reason} {ON_THE_HOST}")

    @property
    def shows_used(self) -> bool:
        """True if the gradients that the last update used are there to be shown."""
        return not self.pending and self.uncleared is not None and self.training.gradients.available

    def zero_grad(self, optimizer: torch.optim.Optimizer, set_to_none: bool) -> None:
        """Do what `zero_grad` of an optimizer does that makes these updates."""
        clear_those_of_the_host(held_tensors(optimizer), set_to_none)
        self._loop.updates.clear_gradients(self.held_by(optimizer), set_to_none)

    def held_by(self, optimizer: torch.optim.Optimizer) -> FrozenSet[int]:
        """Return the ids of the parameters that an optimizer holds."""
        groups = optimizer.param_groups
        key = (id(optimizer), *[(id(group["params"]), len(group["params"])) for group in groups])
        if key != self._held[0]:
            held, every = held_by(optimizer), self._books.gradients.all
            self._held = key, every if held >= every else held
        return self._held[1]

    def cleared(self, dropped: Sequence[Loss]) -> None:
        """Follow gradients that were cleared, by which losses were dropped that no update will be made of."""
        if self.uncleared is None and self.zeroed is None:
            self.training.forget_losses()
        if self.early is not None and self.early.awaited:
            self.early.uncleared = None
            return
        if self.early is not None:
            raise self.early.error(
                f"now zero_grad() at {current_line()} asks to drop its gradients. Read values after optimizer.step(); "
                "gradients that no update follows are those of copy.deepcopy(model), on the host, in a loop with "
                "ipu_prepare or an IPUAccelerator."
            )
        if dropped or self._older or self._shown or self.training.gradients.awaited:
            self.discard(f"its gradients were dropped by zero_grad() at {current_line()}", dropped)

    def early_losses(self, value: Value, operations: Sequence[Operation]) -> Optional[Sequence[Loss]]:
        """Return what has yet to go backward for an update that a value comes with; None if none can run for it."""
        if self.early is not None:
            self.early.check_confirmed()
            return None
        if self.makes_all and has_gone_backward(operations, self._loop) and incomplete(self._loop) is None:
            return ()
        ahead: List[Loss] = []
        if not self.pending and self._loop.postponed is None:
            loss = expected_loss(value, current_line())
            ahead += [] if loss is None else [loss]
        if self.makes_all:
            return ahead if ahead and self.training.expects(ahead) else None
        # Other optimizers may use the losses: the update is the one before, or none.
        losses = self.chosen([*self.pending, *ahead])
        made = {operation for loss in losses for operation in loss.operations}
        calls = {each for each in operations if each.signature.modes is not None and not each.done}
        return ahead if losses and calls <= made and self.training.expects(losses) else None

    def run_early(self, losses: Sequence[Loss]) -> None:
        """Run the update before `optimizer.step()`, for a read of a value; losses go backward for it before."""
        if self.training.optimizer is None:
            self._loop.find_optimizers()
        # Which may have joined the loop with another one.
        self._loop.now.updates.run_ahead(self.own, losses)

    def run_ahead(self, losses: Sequence[Loss]) -> None:
        """Run the update by an optimizer that is known before its step."""
        loop, books, uncleared = self._loop, self._books, None
        entries = self.entries
        before = [dataclasses.replace(entry) for entry in entries] if losses else []
        if losses:
            # Gradients of the update before may still be cleared: in PyTorch there are none of this one yet.
            uncleared = self.uncleared
            for entry in entries:
                entry.used, entry.made = None, []
        for loss in losses:
            loop.backward(loss)
        self._check_update()
        optimizer, link, stepped = self.training.optimizer, self.training.link, self.stepped
        back = None
        if self.may_leave and books.history.watches and optimizer is not None:
            back = TakenBack.of(loop.session, optimizer, link)
        made = self._run()
        own = (uncleared, back, stepped, before, loop.updates.leave_device, losses)
        self.early = EarlyUpdate(current_line(), bool(losses), *own)
        books.gradients.use(self.own, self.early.line, made, self.training.max_grad_norm)
        for loss in losses:
            loss.value.went_backward = functools.partial(self.confirm, made)
        loop.session.hooks.withheld = self.early

    def gradient_of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Return the gradient of a parameter as PyTorch has it now, if any; the update runs for it if need be."""
        training, entry = self.training, self.entry_of(parameter)
        if self.may_leave and entry is not None and not (entry.used and training.gradients.available):
            self.leave_device(f"Gradients are read at {current_line()}.")
            with DisableTorchFunctionSubclass():
                return gradient_of(parameter)
        if entry is not None and entry.losses:
            line = current_line()
            if not self.makes_all and (self.uncleared or not self.training.expects(self.chosen(self.pending))):
                raise CaptureError(
                    f"A gradient is read at {line} of a loss that went backward at {self.pending[-1].line}, for one of "
                    "several optimizers, before its step(): what else its update is of is not known. Read it after "
                    f"that step(). {ON_THE_HOST}"
                )
            self._check_update()
            training.gradients.want(str(line))
            if not self.show_host_gradients(line):
                self.run_early(())
                return self._loop.now.updates.gradient_of(parameter)
        if entry is not None and entry.unknown is not None:
            raise CaptureError(f"A gradient is read at {current_line()}, but {entry.unknown}. {ON_THE_HOST}")
        if entry is None or not (entry.losses or entry.used):
            return None if entry is None or entry.zeros is None else torch.zeros_like(plain(parameter))
        awaits_step = self.early is not None or entry.losses
        return training.gradients.of(parameter, training.clipped_to if awaits_step else training.max_grad_norm)

    def entry_of(self, parameter: torch.Tensor) -> Optional[Entry]:
        """Return the entry of a parameter in the gradient book, None where PyTorch has no gradient of it now."""
        entry = self._books.gradients.holding(id(parameter))
        if entry is None or not entry.exists:
            return None
        if self.early is not None and self.early.awaited:
            return Entry(entry.ids, [], entry.zeros, self.early.uncleared)
        return entry

    def show_host_gradients(self, line: Line) -> bool:
        """Have the host compute the gradients of what went backward so far, where more may follow before the update.

        False if the update can run for them: it is complete, by what is known of the loop.
        """
        complete = incomplete(self._loop) is None and self._loop.updates.accumulates is False
        if complete or not self.makes_all or not self._loop.computes_on_host(line):
            return False
        pending = self.pending
        if self._shown != len(pending):
            self._loop.buffers.settle_unused()
            self.training.gradients.compute(pending)
            self._shown = len(pending)
        return True

    def has_gradient(self, parameter: torch.Tensor) -> bool:
        """Return whether PyTorch has a gradient of a parameter now: whether `parameter.grad` is not None."""
        entry, found = self.entry_of(parameter), self.training.gradients
        if entry is None:
            return False
        if entry.losses:
            if not self.may_leave:
                found.look_for_readers()
            if found.wanted and not self.may_leave and self.makes_all:
                return self.gradient_of(parameter) is not None
        return self.shows_gradient(parameter)

    def shows_gradient(self, parameter: torch.Tensor) -> bool:
        """Return the same by the gradient book alone, without a download or a search for readers of gradients."""
        entry, found = self.entry_of(parameter), self.training.gradients
        if entry is None:
            return False
        if entry.losses:
            return self.training.reaches(parameter, entry.losses)
        if entry.used is not None and found.available:
            return id(parameter) in found.returned
        return self.training.reaches(parameter)

    def clip(
        self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2.0, given: Any = None
    ) -> torch.Tensor:
        """Clip the gradients of the coming update to a global norm; returns that of before, which comes with it.

        Args:
            parameters: All that are trained; those whose norm is returned where `max_norm` is infinite.
            max_norm: Infinite to clip nothing.
            given: What the loop has passed, as far as it tells where the parameters come from.
        """
        training, found = self.training, self.training.gradients
        chosen = list(parameters) if max_norm == math.inf else None
        before = training.clipped_to
        if chosen is None:
            self._check_all(parameters, given)
        if not any(entry.exists for entry in self.entries):
            # Nothing is clipped that is not there.
            return torch.tensor(0.0)
        pending, early = self.pending, self.early
        if chosen is None and (pending or early is not None):
            training.clip(max_norm, norm_type, None if early is None else early.line)
        if chosen is None and not pending and early is None:
            if self.may_leave:
                raise CaptureError(f"Gradients are clipped at {current_line()} after the update that used them.")
            for entry in self.entries:
                entry.unknown = f"gradients were clipped at {current_line()}, after the update that used them"
        if not pending and found.available:
            return found.norm(chosen, norm_type, before if early is not None else training.max_grad_norm)
        operation = Operation(NORM, self._loop.now.models[0], (), current_line())
        norm: torch.Tensor = deferred_results(operation)
        if pending:
            found.await_norm(norm.value, chosen, norm_type, before)  # type: ignore[attr-defined]
        else:
            operation.problem = "the update was made before the norm of its gradients was asked for"
        return norm

    def _check_all(self, parameters: Iterable[torch.Tensor], given: Any) -> None:
        """Refuse to clip some parameters only, unless it is told that they are those of the last check.

        What tells is the module whose `parameters()` they are, else how many there are; and which weights are trained.
        """
        told: Any = None
        if getattr(given, "gi_code", None) is nn.Module.parameters.__code__ and given.gi_frame is not None:
            told = (given.gi_frame.f_locals["self"], given.gi_frame.f_locals["recurse"])
        else:
            parameters = list(parameters)
            told = len(parameters)
        trained = self.training.modes.trained()
        if (told, trained) != self.training.checked:
            self._books.views.check_all(parameters, self.own)
            self.training.checked = told, trained

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        other = self.training.optimizer
        if other is not None and (self.early is not None or not self.pending):
            what = f"for the value read at {self.early.line}" if self.early is not None else "already"
            raise CaptureError(
                f"{type(optimizer).__name__}.step() at {current_line()}: the update was made {what}, by another "
                f"optimizer of the same weights, a {type(other).__name__}. One optimizer makes one update: call "
                "zero_grad() and backward() before each step(), and read values after it."
            )
        self.training.change_optimizer(optimizer)

    def _run(self) -> Mapping[Loss, Made]:
        """Run the update of the pending losses; returns them as they were, if they are kept."""
        loop, books, losses, self._shown = self._loop, self._books, self.pending, 0
        self.training.zeroed = self.zeroed
        chosen = self.chosen(losses)
        if loop.buffers.waiting:
            loop.buffers.before_update(chosen, loop, waits=not self.makes_all)
        operations = [operation for loss in chosen for operation in loss.operations]
        loop.edits.check(operations, loop)
        if USES:
            keep_weights([loop])
        may_leave = self.may_leave
        kept = books.history.keep(loop.session) if may_leave else None
        made = {} if kept is None else {loss: Made(loss, kept) for loss in losses}
        try:
            with loop.buffers.in_update(operations):
                self._run_beside_others(losses, chosen)
        except BaseException as error:
            if may_leave and isinstance(error, IPUError) and not any(each.done for each in operations):
                raise
            books.gradients.drop(losses)
            for loss in losses:
                _discard(loss, f"the step failed: {type(error).__name__}: {error}")
            raise
        self.stepped, self.order = CLOCK.now, next(_ORDER)
        return made

    def _run_beside_others(self, losses: Sequence[Loss], chosen: Sequence[Loss]) -> None:
        """Run an update, and keep what the updates of other optimizers need of the operations and weights of now."""
        weights, others = self._loop.session.weights, self._others
        if not others:
            self.training.run(losses)
            return
        for other in others:
            other.keep_older(self)
        path = {operation for loss in losses if not loss.retained for operation in gradient_path(loss.value)}
        awaited = {each for other in others for loss in other.pending for each in gradient_path(loss.value)}

        def keeps(operation: Operation) -> bool:
            signature = operation.signature
            trains = signature.grad and any(shape.requires_grad for shape in signature.shapes)
            return trains and (operation not in path or operation in awaited)

        operations = [operation for loss in chosen for operation in loss.operations]
        values = self._older_values(operations)
        values += begin_again(operations)
        keep_buffers(operations, awaited, keeps, weights)
        self._older.clear()
        with weights.with_others(values) if values else contextlib.nullcontext():
            self.training.run(chosen, keeps)
        forget(path - awaited)

    def _older_values(self, operations: Sequence[Operation]) -> Values:
        """Return the weights of other optimizers with which operations were recorded, if these have stepped since."""
        values: Values = []
        for other in self._others:
            used = [operation for operation in operations if other.reach.uses(operation)]
            stale = [operation for operation in used if operation.number <= other.stepped]
            if not stale:
                continue
            known = self._older.get(other)
            if known is None or any(operation.number > known.taken for operation in used):
                raise CaptureError(
                    f"The update at {current_line()} needs what was computed at {stale[0].line} with weights that "
                    "another optimizer has changed since, and a device computes a loss together with its update. "
                    "Compute it after that optimizer's step(), or call backward() on it before, and step() of both "
                    "without another in between."
                )
            values += known.values
        return values

    def keep_older(self, stepping: FusedUpdate) -> None:
        """Keep the weights that another optimizer is about to change, if what is pending was computed with them."""
        uses = stepping.reach.uses
        if stepping in self._older:
            return
        if any(uses(operation) for loss in self.chosen(self.pending) for operation in loss.operations):
            self._older[stepping] = Older.of(self._loop.session, stepping.own)

    def discard(self, problem: str, dropped: Optional[Sequence[Loss]] = None) -> None:
        """Discard losses that went backward, or all: their values will never be known, for a reason."""
        losses = list(self.pending) if dropped is None else dropped
        self._shown = 0
        self._books.gradients.drop(losses)
        if not self.pending:
            self.training.clipped = False
            self.training.gradients.discard(problem)
            self._older.clear()
        awaited = {operation for other in self._others for loss in other.pending for operation in loss.operations}
        for loss in losses:
            _discard(loss, problem, awaited)
            if not (self.makes_all or loss.retained):
                forget(set(gradient_path(loss.value)) - awaited)


def _refuse_spent(loss: Loss) -> None:
    """Refuse a loss whose gradients would flow through what an update was made of that has run."""
    spent = {each: leaf.spent for each in loss.operations for leaf in each.leaves if type(leaf) is Input and leaf.spent}
    for operation in gradient_path(loss.value) if spent else ():
        if operation in spent:
            raise CaptureError(
                f"The loss at {loss.line} is computed from a value of {spent[operation]}, of which an update has run. "
                "PyTorch would go backward through that a second time: an error without retain_graph=True, and with "
                "it gradients by the weights of then, in a graph that grows from step to step, as in reinforcement "
                "learning. On a device each update is a program of its own. Compute with value.detach() where the "
                "number alone is meant, or call optimizer.step() once, after all that the loss is computed from."
            )


def _discard(loss: Loss, problem: str, awaited: Container[Operation] = ()) -> None:
    for operation in loss.operations:
        if not operation.done and operation not in awaited:
            operation.problem = problem
