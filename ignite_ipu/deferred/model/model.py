"""A user's model whose calls are captured: the object stays the user's, its class becomes one that records.

In training mode a call records; with gradients off, or in evaluation mode, it runs on the device with the newest
weights.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
    cast,
)

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # PyTorch's own, which a script's calls may be substituted for

from ignite_ipu.deferred.compiled.evaluation import CapturedEvaluation, with_gradients
from ignite_ipu.deferred.compiled.host_calls import called_on_host
from ignite_ipu.deferred.compiled.host_update import refuse_replicas
from ignite_ipu.deferred.compiled.modes import Modes, ReplacedError
from ignite_ipu.deferred.compiled.places import Places
from ignite_ipu.deferred.compiled.training import CapturedTraining
from ignite_ipu.deferred.events import OBSERVERS
from ignite_ipu.deferred.graph.operations import Operation, Value
from ignite_ipu.deferred.graph.owners import (
    OPTIMIZERS,
    held_parameters,
    held_tensors,
    is_held,
    own,
    parameter_of,
    release_optimizer,
)
from ignite_ipu.deferred.graph.step_graph import Loss, ancestors
from ignite_ipu.deferred.model.buffers import BufferBook
from ignite_ipu.deferred.model.capturing_class import release_class
from ignite_ipu.deferred.model.early_reads import early_read_error, not_frozen
from ignite_ipu.deferred.model.gradient_views import GradientViews, clear_those_of_the_host
from ignite_ipu.deferred.model.gradients import GradientBook
from ignite_ipu.deferred.model.history import History
from ignite_ipu.deferred.model.leaving import leave_device
from ignite_ipu.deferred.model.recording import RecordedCalls
from ignite_ipu.deferred.model.updates import Updates
from ignite_ipu.deferred.model.updates_on_host import UpdatesOnHost
from ignite_ipu.deferred.model.writes import WeightEdits
from ignite_ipu.deferred.settings import IGNORING, CaptureObserver
from ignite_ipu.deferred.tensor.routing import awaits_backward
from ignite_ipu.deferred.tensor.tensor import all_values, deferred_values, record_on_weights
from ignite_ipu.errors import CaptureError, EarlyReadError, logger
from ignite_ipu.optimizers.kinds import ON_THE_HOST
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.gradient_hooks import GradientHooks
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest


class CapturedModel:
    """Captured model: records its calls and runs its updates.

    Args:
        join: Returns what trains captured models that the loss at a line is computed by, and tells it its optimizer.
        postponed: Called when a value is read between backward and `optimizer.step()`: returns why the update cannot
            run yet, None if it can.
        clip_remedy: What the loop does to clip gradients, for whoever uses `parameter.grad`; when None, `.grad` stays
            as it is.
        part_of: What captures a model of which this one is a submodule.
        joins: Whether the parameters become this one's that others have captured.
        places: What is asked for the IPUs of models that are trained together, by their paths; as `config` says for
            one model when None.

    Attributes:
        whole: What runs the updates: this, or what captures the models that one optimizer trains together.
        path: Where in the whole's model this one is.
        turns: What each of the whole's optimizers makes of its losses; one before they are known.
        modes: The modes of the whole's model.
        edits, buffer_writes: What was written on the host, and the book of buffers that calls write.
    """

    def __init__(
        self,
        model: nn.Module,
        config: IPUConfig,
        join: Callable[[Sequence[CapturedModel], Line], List[CapturedModel]],
        postponed: Callable[[], Optional[str]] = lambda: None,
        clip_remedy: Optional[str] = None,
        part_of: Optional[CapturedModel] = None,
        observer: CaptureObserver = IGNORING,
        joins: bool = False,
        places: Optional[Mapping[str, PipelineRequest]] = None,
    ) -> None:
        self.model = model
        self.whole = self
        self.path = ""
        self.parts: List[CapturedModel] = []
        self.config = config
        self._observer = observer
        self._join = join
        self.postponed = postponed
        self._calls = RecordedCalls(self)
        self._tensors: Dict[str, torch.Tensor] = {}
        self._told_of_host_reads = False
        if part_of is not None:
            self._follow(part_of)
            part_of.parts.append(self)
            return
        self.clip_remedy, self._joins = clip_remedy, joins
        self._asked_places = places
        self._begin()

    def _begin(self) -> None:
        model = self.model
        self.session = IPUSession.of(model)
        self.session.refuse_second_trainer()
        asked = self._asked_places
        self.places = Places.of(model, self.config) if asked is None else Places(model, asked)
        self.modes = Modes(model, self.session.weights)
        self._hooks = GradientHooks()
        self.turns = [Updates(self)]
        self.on_host: Optional[UpdatesOnHost] = None
        if self.config.update == "host":
            refuse_replicas(self.turns[0].training.replicas)
            self.on_host = UpdatesOnHost(self)
        self.standby = UpdatesOnHost(self) if self.config.update == "auto" else None
        self.evaluation = CapturedEvaluation(self.session, self.config, self.places)
        self.edits = WeightEdits(self.session.weights)
        self.buffer_writes = BufferBook(self.modes, self.edits, self.session.weights)
        with DisableTorchFunctionSubclass():
            self.book = GradientBook(map(id, model.parameters()))
        self.history = History()
        looks = (self.has_gradient, self.gradient_of, self.replace_gradient, self.release_gradients)
        self.views = GradientViews(model, self.clip_remedy, *looks)
        self._look_after(self.session)
        self.session.hooks.recorder = record_on_weights
        self.session.weights.watch_parameters()
        self._tensors = named_tensors(model)
        own(self, {name: each for name, each in self._tensors.items() if self._joins or parameter_of(each) is None})

    def _begin_again(self) -> bool:
        """Take the model as it is now, with the optimizer's state there is; returns whether that was possible.

        Loops make layers in a model's first call, put another head on it for another task, and prune it, again and
        again. Between the losses of an update and the update that is refused.
        """
        before, several = self.turns, self.several
        if any(turn.early or not turn.is_known for turn in before) or not self.buffer_writes.is_settled:
            return False
        if any(turn.training.prepared for turn in before):
            logger.warning(
                "Weights of %s were replaced, added or removed before it was called at %s: its programs are compiled "
                "again. On IPUs each compilation takes minutes.",
                self.name,
                current_line(),
            )
        if self.on_host is not None:
            self.on_host.programs.forget_program()
        for turn in before:
            turn.training.forget_program()
        self.session.close()
        self._begin()
        within = set(map(id, self.model.modules()))
        parts, self.parts = self.parts, []
        for part in parts:
            if id(part.model) in within:
                part._follow(self)
                self.parts.append(part)
            else:
                release_class(part.model)
        for turn in before:
            # Of several optimizers each goes on; else one may follow that holds the weights of now.
            now = self.turn_of(turn.training.optimizer) if several and turn.training.optimizer else self.turns[0]
            now.go_on_from(turn)
        return True

    @property
    def name(self) -> str:
        joined = getattr(self.model, "joined_names", None)
        return type(self.model).__name__ if joined is None else str(joined)

    @property
    def is_alone(self) -> bool:
        """True if it is trained together with no other model, and no update of it is under way."""
        alone = self.whole is self and not self.parts
        return alone and not (self.pending or any(turn.early for turn in self.turns))

    @property
    def is_untrained(self) -> bool:
        """True if nothing was trained, by this model or together with others."""
        return self.is_alone and not any(turn.training.prepared for turn in self.turns)

    def like(self, model: nn.Module, places: Mapping[str, PipelineRequest]) -> CapturedModel:
        """Return what captures another model in the same way, for `join`."""
        own = (self.config, self._join, self.postponed, self.clip_remedy)
        return CapturedModel(model, *own, observer=self._observer, joins=True, places=places)

    def parameter_ids(self) -> Sequence[int]:
        return [id(parameter) for parameter in self.model.parameters()]

    def owns(self, name: str, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is the model's parameter or buffer of this name."""
        return self._tensors.get(name) is tensor

    def call(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        try:
            result = self._answer(args, kwargs)
        except ReplacedError:
            if not self.whole._begin_again():
                raise
            result = self._answer(args, kwargs)
        if OBSERVERS and not (self.model.training and torch.is_grad_enabled()):
            for observer in OBSERVERS:
                observer.evaluated(self.model, result)
        return result

    def _answer(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        grad = torch.is_grad_enabled()
        if not (grad and self.model.training):
            if not self.continues_a_step(args, kwargs):
                self._observer.called(self, recorded=False)
                whole = self.whole
                whole.buffer_writes.before_evaluation(self)
                if not grad:
                    return whole.evaluation.run(args, kwargs, self.model)
                trained = is_held(self.model, trained=True)
                show = functools.partial(with_gradients, arguments=(args, kwargs), trained=trained)
                return whole.evaluation.run(args, kwargs, self.model, show)
            if not self.is_frozen:
                raise not_frozen(self)
        self._observer.called(self, recorded=True)
        return self._calls.record(args, kwargs, grad)

    def continues_a_step(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        """Tell whether the model is called with what a step has yet to compute."""
        return any(map(awaits_backward, deferred_values((args, kwargs)))) or (
            torch.is_grad_enabled() and any(value.live for value in all_values((args, kwargs)))
        )

    @property
    def is_frozen(self) -> bool:
        with DisableTorchFunctionSubclass():
            return not any(parameter.requires_grad for parameter in self.model.parameters())

    def _look_after(self, session: IPUSession) -> None:
        """Let a session, which may be that of an engine over a part, go by what is captured."""
        hooks = session.hooks
        hooks.gradients = self.views if self.on_host is None else None
        hooks.check_evaluation = functools.partial(self.buffer_writes.before_evaluation, self)
        hooks.before_buffer_read = self.buffer_writes.before_read
        hooks.before_buffers_written = self.buffer_writes.before_written
        hooks.refuse_frozen = _refuse

    @property
    def training(self) -> CapturedTraining:
        return self.turns[0].training

    @property
    def trainings(self) -> Sequence[CapturedTraining]:
        """The programs that train it: those of each optimizer, or of all together that step on the host."""
        on_host = self.whole.on_host
        return [turn.training for turn in self.whole.turns] if on_host is None else [on_host.programs]

    @property
    def uncleared(self) -> Optional[Line]:
        """Line of the last update, as long as its gradients have not been cleared; of several the next update asks."""
        return None if self.several else self.turns[0].uncleared

    @property
    def several(self) -> bool:
        """True if several optimizers train it."""
        return len(self.turns) > 1

    @property
    def pending(self) -> Sequence[Loss]:
        """Losses that went backward since the last update."""
        if len(self.turns) == 1:
            return self.turns[0].pending
        return list(dict.fromkeys(loss for turn in self.turns for loss in turn.pending))

    def turn_of(self, optimizer: torch.optim.Optimizer) -> Updates:
        """Return the updates by an optimizer, which has parameters of its own where another one is known."""
        for turn in self.turns:
            if turn.training.optimizer is optimizer:
                return turn
        turn = self.turns[0]
        if turn.training.optimizer is not None:
            turn = Updates(self)
            self.turns.append(turn)
        turn.training.optimizer = optimizer
        if self.several:
            for each in self.turns:
                each.train_held()
                for entry in self.book.within(each.own):
                    entry.losses = [loss for loss in entry.losses if each.chosen([loss])]
        return turn

    def turn_with(self, parameters: Sequence[torch.Tensor]) -> Updates:
        """Return the updates of those parameters; of all, where one optimizer has all."""
        ids, turns = {id(parameter) for parameter in parameters}, self.whole.turns
        found = [turn for turn in turns if len(turns) == 1 or not ids.isdisjoint(turn.training.own or ())]
        if len(found) != 1:
            raise CaptureError(
                f"Gradients of {self.name} are used at {current_line()} that are several optimizers', or none's: clip "
                "those of each optimizer's parameters by a call of its own."
            )
        return found[0]

    def clip(
        self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float, given: Any = None
    ) -> torch.Tensor:
        """Clip the gradients of parameters in the coming update, and return their norm, as `Updates.clip` does."""
        if self.whole.on_host is not None:
            return clip_grad_norm_(list(parameters), max_norm, norm_type)
        whole = self.whole
        if whole.may_leave:
            parameters = list(parameters)
        try:
            if not whole.several:
                return whole.turns[0].clip(parameters, max_norm, norm_type, given)
            tensors = list(parameters)
            return whole.turn_with(tensors).clip(tensors, max_norm, norm_type)
        except CaptureError as error:
            self.leave_device(str(error), error)
            return clip_grad_norm_(list(parameters), max_norm, norm_type)

    def zero_grad(self, set_to_none: bool, model: nn.Module) -> None:
        """Do what `zero_grad` of a model does, this or a part of it."""
        if self.on_host is not None:
            with self.session.weights.stepping():
                nn.Module.zero_grad(model, set_to_none)
            return
        with DisableTorchFunctionSubclass():
            parameters = list(nn.Module.parameters(model))
        self.clear_gradients(frozenset(map(id, parameters)), set_to_none)
        clear_those_of_the_host(parameters, set_to_none)

    def clear_gradients(self, ids: FrozenSet[int], set_to_none: bool = True) -> None:
        """Clear the gradients of parameters on the device, to None or to zeros."""
        turns = [turn for turn in self.turns if len(self.turns) == 1 or not ids.isdisjoint(turn.own)]
        if self.may_leave and self._keeps_from_clearing(turns, ids):
            self.leave_device(f"Gradients that no update has used are cleared at {current_line()}.")
            self._clear_on_host(ids, set_to_none)
            return
        if set_to_none:
            self.views.clear(ids, all(turn.shows_used for turn in turns))
        ahead = [turn.early for turn in self.turns if turn.early is not None and turn.early.awaited]
        awaited = [loss for early in ahead for loss in early.losses]
        dropped = self.book.clear(ids, None if set_to_none else current_line())
        if awaited:
            # They go backward after this, for the updates of other optimizers, too.
            dropped = [loss for loss in dropped if loss not in awaited]
            for turn in turns:
                for loss in awaited if turn.early not in ahead else ():
                    if turn.chosen([loss]):
                        self.book.add(turn.own, loss)
        for turn in turns:
            turn.cleared(dropped)
        if not any(entry.exists for entry in self.book.entries):
            self.history.forget()

    def _keeps_from_clearing(self, turns: Sequence[Updates], ids: FrozenSet[int]) -> bool:
        """Return whether clearing drops losses of which there may be something to see, or an update that was made."""
        if any(turn.early is not None and not turn.early.awaited for turn in turns):
            return True
        losses = [loss for entry in self.book.of(ids) for loss in entry.losses]
        return any(not loss.value.operation.done for loss in losses) or self.views.are_held(ids)

    def _clear_on_host(self, ids: FrozenSet[int], set_to_none: bool) -> None:
        parameters = [each for each in self.modes.parameters if id(each) in ids]
        clear_those_of_the_host(parameters, set_to_none)

    @property
    def may_leave(self) -> bool:
        """True if updates may be made on the host from some moment on."""
        return self.standby is not None

    def leave_device(self, reason: str, error: Optional[Exception] = None) -> None:
        """Make updates on the host from here on, for a reason; raise an error instead if that is not allowed."""
        whole = self.whole
        if whole.on_host is not None:
            return
        if whole.standby is None:
            raise CaptureError(f"{reason} {ON_THE_HOST}") if error is None else error
        leave_device(whole, reason.split(" A device")[0])

    def had_gradient(self, parameter: torch.Tensor) -> bool:
        """Return whether the last losses that went backward have given a parameter a gradient, since cleared."""
        return id(parameter) in self._turn_holding(parameter).training.reached()

    def has_gradient(self, parameter: torch.Tensor) -> bool:
        """Return whether PyTorch has a gradient of a parameter now."""
        return self._turn_holding(parameter).has_gradient(parameter)

    def shows_gradient(self, parameter: torch.Tensor) -> bool:
        """Return the same without bringing anything to the host."""
        return self._turn_holding(parameter).shows_gradient(parameter)

    def gradient_of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Return the gradient of a parameter as PyTorch has it now, if any."""
        return self._turn_holding(parameter).gradient_of(parameter)

    def replace_gradient(self, parameter: torch.Tensor, gradient: Optional[torch.Tensor]) -> None:
        """Forget the gradient of a parameter on the device, which the loop replaces by another or by None."""
        if gradient is not None and self.whole.may_leave:
            self.leave_device(f"The gradient of a parameter is set at {current_line()}.")
            return
        self.clear_gradients(frozenset((id(parameter),)))

    def release_gradients(self, writes: bool) -> None:
        """Bring gradients to the host that the loop writes, or reads when the last update has not returned them."""
        if not self.whole.may_leave:
            return
        if writes or not all(turn.shows_used for turn in self.turns if turn.uncleared or turn.pending):
            self.leave_device(f"Gradients are used at {current_line()}.")

    def before_write(self) -> None:
        """Note that weights are about to be written, or frozen, by which pending losses were not computed."""
        whole = self.whole
        if whole.may_leave and any(not loss.value.operation.done for loss in whole.pending):
            self.leave_device(f"Weights are written or frozen at {current_line()} between backward() and the step.")

    def _turn_holding(self, parameter: torch.Tensor) -> Updates:
        turns = self.whole.turns
        return next((turn for turn in turns if id(parameter) in turn.own), turns[0])

    def backward(self, loss: Loss) -> None:
        on_host = self.whole.on_host
        if on_host is not None:
            on_host.backward(loss)
            self._observer.went_backward(self)
            return
        hooked = self.whole._hooked_name()
        if hooked:
            self.whole.leave_device(f"There is a hook on the gradient of {hooked}, which runs on the host alone.")
            self.backward(loss)
            return
        turns = self.whole.turns
        try:
            for turn in turns:
                if turn.early is not None or turn.reach is None or turn.chosen([loss]):
                    turn.check_backward(loss)
        except CaptureError as error:
            self.whole.leave_device(str(error), error)
            self.backward(loss)
            return
        if len(turns) > 1:
            turns = [turn for turn in turns if turn.reach is None or turn.chosen([loss])]
        if not turns:
            raise CaptureError(
                f"The loss at {loss.line} trains no weights that an optimizer holds: its gradients would be used by "
                "nobody."
            )
        for turn in turns:
            turn.backward(loss)
        self.whole.add_to_unheld(loss)
        self._observer.went_backward(self)

    def _hooked_name(self) -> str:
        """Return the name of a parameter with a hook on its gradient, "" if there is none."""
        numbers = self._hooks.among(self.modes.parameters)
        return next(iter(self.views.names([id(self.modes.parameters[numbers[0]])])), "a weight") if numbers else ""

    def add_to_unheld(self, loss: Loss) -> None:
        """Add the gradients of a loss to those of parameters that no optimizer holds, which no update clears."""
        if len(self.book.entries) == 1:
            return
        rest = self.book.all.difference(*[turn.own for turn in self.turns])
        for entry in self.book.within(rest) if rest else ():
            if entry.losses:
                entry.unknown = "no optimizer holds the parameter, so its gradients of all losses so far add up"
            entry.losses = [loss]

    @property
    def accumulates(self) -> Optional[bool]:
        """True if an update so far was made from several micro-batches; None before the first."""
        if self.several or self.whole.on_host is not None:
            return False  # they are compared with the last update each time
        most = self.training.most_micro_batches
        return None if most is None else most > 1

    def know_norms(self, line: Line) -> bool:
        """Have the host compute awaited norms of gradients, which are read at a line; tells whether it could."""
        if self.may_leave:
            self.leave_device(f"The norm of gradients is read at {line} before the update is complete.")
            return True
        if self.several or not self.turns[0].show_host_gradients(line):
            return False
        self.training.gradients.settle_norms()
        return True

    def early_update(self, value: Value, operations: Sequence[Operation]) -> Optional[Callable[[], None]]:
        """Return what runs the update of a value before its `optimizer.step()`; None if none can run for it."""
        if self.whole.on_host is not None:
            return self.whole.on_host.early(value, operations)
        if self.whole.may_leave and any(turn.early is not None and turn.early.awaited for turn in self.whole.turns):
            self.leave_device(f"Another value is read at {current_line()} before the loss of an update went backward.")
            return self.early_update(value, operations)
        # Where optimizers take turns, the one that stepped longest ago comes next.
        for turn in sorted(self.whole.turns, key=lambda turn: turn.order):
            losses = turn.early_losses(value, operations)
            if losses is not None:
                return functools.partial(turn.run_early, losses)
        return None

    def refuse_read(self, value: Value, what: str) -> None:
        """Refuse a read for which no update can run."""
        stale = [each for each in ancestors(value) if each.model is not None and self._is_stale(each)]
        if stale:
            raise EarlyReadError(
                f"{what} at {current_line()} asks for a value that the call of {self.name} at {stale[0].line} gives, "
                "and the weights that it used have been updated since. The device computes what an update is of, and "
                "that call is of no update. Read the value before optimizer.step(), or call the model in eval mode "
                "under torch.no_grad()."
            )
        if self.several:
            raise EarlyReadError(
                f"{what} at {current_line()} asks for a value of an update by one of several optimizers before its "
                "step(), and the host cannot compute it beside that: random numbers are drawn for it, or calls of the "
                "model read what earlier ones write. Read it after that step()."
            )
        raise early_read_error(self, value, what)

    def computes_on_host(self, line: Line) -> bool:
        """Copy the newest weights to the host, if it has not got them, to compute a value there that is read at a line.

        False if the host is not to have them: the device has made an update ahead of its `optimizer.step()`.
        """
        whole, weights = self.whole, self.session.weights
        if any(turn.early is not None for turn in whole.turns):
            return False
        if weights.to_host() and not whole._told_of_host_reads:
            whole._told_of_host_reads = True
            logger.warning(
                "The value read at %s belongs to a weight update that is not complete, so the host computes it, "
                "here and in the steps to come: each time a forward pass on the CPU, with a copy of the weights "
                "after each update. Keep loss.detach() and read it after optimizer.step() to save both.",
                line,
            )
        return True

    def check_weights(self) -> None:
        """Notice what was written into weights; refuse to compute with them where the device is ahead of the loop."""
        self.whole.session.hooks.check_shown()
        self.whole.edits.look()

    def check_unwritten(self, operations: Sequence[Operation]) -> None:
        """Refuse to read a value of operations that were recorded before weights were written."""
        self.whole.edits.check(operations, self, "The read")

    def show_weights(self, operations: Sequence[Operation]) -> None:
        """Copy the newest weights to the host, and refuse operations that were recorded before somebody wrote some."""
        self.check_unwritten(operations)
        self.whole.session.weights.to_host()

    def beside(self, weights: Sequence[torch.Tensor]) -> CapturedModel:
        """Return what captures weights that nothing has captured, to be trained together with this."""
        for weight in weights:
            self._observer.uses(weight)
        own = {id(weight) for weight in weights}
        if own - held_parameters():
            raise CaptureError(
                f"The loss that goes backward at {current_line()} is computed from parameters that no optimizer holds "
                "and no captured model has. Prepare what they are of, or call requires_grad_(False) on them."
            )
        held = [each for each in map(held_tensors, list(OPTIMIZERS)) if not own.isdisjoint(map(id, each))]
        loose = {id(each): each for each in itertools.chain(weights, *held) if parameter_of(each) is None}
        return self.whole.like(LooseParameters(list(loose.values())), {}) if loose else self

    def computes_alone(self, call: Operation) -> bool:
        """Tell whether the host can compute a call before those that were made before it have run."""
        return not (self._is_stale(call) or self.whole.buffer_writes.waits_for_others(call))

    def _is_stale(self, call: Operation) -> bool:
        """Return whether weights that a call used have been updated since."""
        turns = [turn for turn in self.whole.turns if turn.stepped >= call.number and not call.done]
        return any(turn.reach is None or turn.reach.uses(call) for turn in turns)

    def called_with(self, call: Operation, tensors: Sequence[torch.Tensor]) -> Any:
        """Return the results of a call, computed on the host as the model was at the call, without a trace there.

        Raises:
            CaptureError: Python values that the model's code reads have changed since the call.
        """
        whole, signature = self.whole, call.signature
        modes, now = signature.modes, whole.modes.now()
        with contextlib.ExitStack() as stack:
            if modes is not None and modes.of is whole.modes:
                alike = modes._replace(training=now.training, trained=now.trained)
                if alike != now:
                    raise CaptureError(
                        f"A value is read at {current_line()} of the call of {self.name} at {call.line}, whose update "
                        f"has not run. The host cannot compute it any more: {alike.difference(now)}. Read it "
                        "before that, or after optimizer.step()."
                    )
                stack.enter_context(whole.modes.in_training_as(modes))
            arguments = (signature.structure, tensors, whole.session.weights, self.name, signature.left)
            return called_on_host(self.model, *arguments).results

    def joined(self, others: Sequence[CapturedModel], line: Line) -> List[CapturedModel]:
        """Return what trains this and other models that the loss at a line is computed by, joined where one does."""
        return self._join([self, *others], line)

    def join(self, parts: List[CapturedModel]) -> None:
        """Run the updates and evaluations of other captured models, which are parts of this one's model."""
        for whole in {part.whole: None for part in parts}:
            self.buffer_writes.merge(whole.buffer_writes)
            for before in whole.turns:
                optimizer = before.training.optimizer
                mine = self.turns[0] if optimizer is None else self.turn_of(optimizer)
                mine.early = mine.early or before.early
            self.book.merge(whole.book)
        for part in parts:
            session = part.session
            if session is not self.session:
                session.close()
                self._look_after(session)
            part._follow(self)
        self.parts = parts

    def _follow(self, whole: CapturedModel) -> None:
        """Be a part of a model from now on."""
        (self.path,) = [name for name, module in whole.model.named_modules() if module is self.model]
        self.whole = whole
        self.session, self.turns, self.evaluation = whole.session, whole.turns, whole.evaluation
        self.on_host, self.standby = whole.on_host, None
        self.modes = whole.modes
        self.session.serve(self.model)

    def close(self, optimizers: bool = True) -> None:
        """End the capture: the model and its optimizer are ordinary ones again, with the newest weights and state.

        Args:
            optimizers: Whether its optimizer is ordinary again, too, which may hold what else is captured.

        Raises:
            SessionError: Something on the device could not be copied; the capture has ended all the same.
        """
        if self.whole is not self:
            return self.whole.close(optimizers)
        self.buffer_writes.settle_unused()
        lost = [loss for loss in self.pending if not loss.value.operation.done]
        if lost:
            logger.warning(
                "%s was given back before optimizer.step(): the gradients of %d losses that went backward are dropped, "
                "where PyTorch keeps them. Call optimizer.step() or zero_grad() before.",
                self.name,
                len(lost),
            )
        for turn in self.turns:
            turn.give_up("its model was given back")
        try:
            self.session.close()
        finally:
            for turn in self.turns:
                if optimizers and turn.training.optimizer is not None:
                    release_optimizer(turn.training.optimizer)
            for capture in (self, *self.parts):
                release_class(capture.model)
                # A value that the user still holds keeps this alive, but its tensors are not captured any more.
                capture._tensors = {}

    def find_optimizer(self) -> None:
        """Find out which optimizer trains this."""
        self._join([self], current_line())
        if self.training.optimizer is None:
            raise CaptureError("The model's optimizer is not known: prepare it together with the model.")


class LooseParameters(nn.ParameterList):
    """The module of parameters that are no module's, as the temperatures and uncertainties that a loss weighs with."""


def owner_of(tensor: torch.Tensor) -> Optional[CapturedModel]:
    """Return the captured model that has a tensor as its parameter or buffer, None for any other tensor."""
    found = parameter_of(tensor)
    return None if found is None else cast(CapturedModel, found[0])


def first_owner(
    parameters: Union[torch.Tensor, Iterable[torch.Tensor]],
) -> Tuple[Optional[CapturedModel], Iterable[torch.Tensor]]:
    """Return the captured model that has the first of parameters, if any, and all of them.

    What `model.parameters()` returns can be gone through once, and is not before somebody needs all.
    """
    first, every = itertools.tee([parameters] if isinstance(parameters, torch.Tensor) else parameters)
    with DisableTorchFunctionSubclass():
        found = next(first, None)
        return None if found is None else owner_of(found), every


def _refuse(reason: str) -> None:
    raise CaptureError(reason)
