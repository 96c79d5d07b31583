"""A user's model whose calls are captured: the object stays the user's, its class becomes one that records.

In training mode a call records; with gradients off, or in evaluation mode, it runs on the device with the newest
weights.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, cast

import torch
from torch import nn

from ignite_ipu.deferred.compiled.evaluation import CapturedEvaluation, with_gradients
from ignite_ipu.deferred.compiled.training import CapturedTraining
from ignite_ipu.deferred.graph.operations import CallSignature, Operation, Value, keep_inputs
from ignite_ipu.deferred.graph.owners import own, parameter_of
from ignite_ipu.deferred.graph.signatures import SignaturesByModes, seen_before
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.graph.structure import Structure, flatten_call
from ignite_ipu.deferred.model.capturing_class import release_class
from ignite_ipu.deferred.model.device_gradients import DeviceGradients, refuse_uncleared
from ignite_ipu.deferred.model.early_reads import EarlyUpdate, check_early_read, expected_loss, not_frozen
from ignite_ipu.deferred.model.held import held_parameters, is_trained, release_optimizer
from ignite_ipu.deferred.model.host_calls import HostCall, called_on_host
from ignite_ipu.deferred.model.transforms import refuse_transforms
from ignite_ipu.deferred.model.weight_edits import WeightEdits
from ignite_ipu.deferred.settings import CaptureSettings
from ignite_ipu.deferred.tensor.buffer_writes import BufferWrites
from ignite_ipu.deferred.tensor.routing import awaits_backward
from ignite_ipu.deferred.tensor.tensor import DeferredTensor, as_leaf, deferred_results, deferred_values
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.session import IPUSession

__all__ = ["CapturedModel", "owner_of"]

_logger = logging.getLogger("ignite_ipu")


class CapturedModel:
    """Captured model: records its calls and runs its updates.

    Args:
        model: The user's model.
        settings: How steps are compiled.
        join: Returns what trains captured models that the loss at a line is computed by, and tells it its optimizer.
        postponed: Called when a value is read between backward and `optimizer.step()`: returns why the update cannot
            run yet, None if it can.
        clip_remedy: What the loop does to clip gradients, for whoever uses `parameter.grad`; when None, `.grad` stays
            as it is.
        part_of: What captures a model of which this one is a submodule.
        joins: Whether the parameters become this one's that others have captured.

    Attributes:
        model: The user's model.
        whole: What runs the updates: this, or what captures the models that one optimizer trains together.
        path: Where in the whole's model this one is.
        session: The model's session, with the weights and the programs.
        training, evaluation: What runs updates and evaluations.
        pending: Losses that went backward since the last update.
        uncleared: Where the last update was made, as long as its gradients have not been cleared.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: CaptureSettings,
        join: Callable[[Sequence[CapturedModel], Line], List[CapturedModel]],
        postponed: Callable[[], Optional[str]] = lambda: None,
        clip_remedy: Optional[str] = None,
        part_of: Optional[CapturedModel] = None,
        joins: bool = False,
    ) -> None:
        self.model = model
        self.whole = self
        self.path = ""
        self.parts: List[CapturedModel] = []
        self.settings = settings
        self._observer = settings.observer
        self.pending: List[Loss] = []
        self._join = join
        self.postponed = postponed
        self._early: Optional[EarlyUpdate] = None
        self.uncleared: Optional[Line] = None
        # Without and with gradients.
        self._signatures = SignaturesByModes(DeferredTensor), SignaturesByModes(DeferredTensor)
        self._tensors: Dict[str, torch.Tensor] = {}
        self._gradients: DeviceGradients
        if part_of is not None:
            self._gradients = part_of._gradients
            self._follow(part_of)
            part_of.parts.append(self)
            return
        self.session = IPUSession.of(model)
        self.session.refuse_second_trainer()
        self._clip_remedy = clip_remedy
        self._gradients = DeviceGradients(model, clip_remedy)
        self.training = CapturedTraining(self.session, settings)
        self.evaluation = CapturedEvaluation(self.session, settings)
        self._edits = WeightEdits(self.session.weights)
        self._buffer_writes = BufferWrites()
        self._look_after(self.session)
        self._tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        own(self, {name: tensor for name, tensor in self._tensors.items() if joins or parameter_of(tensor) is None})

    @property
    def name(self) -> str:
        """Name of the model in messages."""
        joined = getattr(self.model, "joined_names", None)
        return type(self.model).__name__ if joined is None else str(joined)

    def like(self, model: nn.Module) -> CapturedModel:
        """Return what captures another model in the same way, for `join`."""
        return CapturedModel(model, self.settings, self._join, self.postponed, self._clip_remedy, joins=True)

    def owns(self, name: str, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is the model's parameter or buffer of this name."""
        return self._tensors.get(name) is tensor

    # -- calls of the model ---------------------------------------------------------------------------------------

    def call(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Answer a call of the model.

        Raises:
            CaptureError: PyTorch transforms the call, or replaces weights for it.
        """
        refuse_transforms(self)
        grad = torch.is_grad_enabled()
        if not (grad and self.model.training):
            if not self.continues_a_step(args, kwargs):
                if self._observer is not None:
                    self._observer.called(self, recorded=False)
                whole = self.whole
                whole._buffer_writes.check_evaluation(self)
                output = whole.evaluation.run(args, kwargs, self.model)
                return with_gradients(output, (args, kwargs), is_trained(self.model)) if grad else output
            if not self.is_frozen:
                raise not_frozen(self)
        if self._observer is not None:
            self._observer.called(self, recorded=True)
        return self._record(args, kwargs, self._signatures[grad])

    def continues_a_step(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
        """Tell whether the model is called with what a step has yet to compute."""
        return any(map(awaits_backward, deferred_values((args, kwargs))))

    @property
    def is_frozen(self) -> bool:
        """True if no parameter of the model requires gradients."""
        with torch._C.DisableTorchFunctionSubclass():
            return not any(parameter.requires_grad for parameter in self.model.parameters())

    def _record(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], known: SignaturesByModes) -> Any:
        whole, line = self.whole, current_line(above=3)
        whole._edits.look()
        modes = whole.training.modes.now()
        signatures = known.last if modes is known.modes else known.of(modes)
        leaves: List[Any] = []
        values = (*args, *kwargs.values()) if kwargs else args
        signature = signatures.look_up([len(args), *kwargs], values, leaves, ())
        if signature is None:
            signature, leaves = self._found_out(known, args, kwargs, line)
        operation = Operation(signature, self, leaves, line)
        if signature.writes:
            whole._buffer_writes.note(operation)
        return deferred_results(operation)

    def _found_out(
        self, known: SignaturesByModes, args: Tuple[Any, ...], kwargs: Dict[str, Any], line: Line
    ) -> Tuple[CallSignature, List[Any]]:
        """Return the signature of a call that takes more than a look at its arguments, and their leaves."""
        found: List[Any] = []
        signatures = known.last
        structure = flatten_call(args, kwargs, found)
        with torch._C.DisableTorchFunctionSubclass():
            leaves = [as_leaf(leaf, line) for leaf in found]
            key = (structure.key, tuple([leaf.shape.key for leaf in leaves]))
            signature = signatures.templates.get(key)
            if signature is None:
                called = self._called_on_host(structure, leaves)
                # A first call may set something up, such as a cache or the weights of lazy layers.
                self.whole._edits.look()
                modes = self.whole.training.modes.now()
                signatures = known.of(modes)
                make = functools.partial(called.signature, structure, leaves, modes, self.is_frozen)
                signature = seen_before(signatures.templates, key, make)
            signatures.learn([len(args), *kwargs], (*args, *kwargs.values()), (), signature)
            return signature, leaves

    def _called_on_host(self, structure: Structure, leaves: List[Any]) -> HostCall:
        """Find out what the model returns and writes by calling it on the host, without a trace there.

        Raises:
            CaptureError: Some of it is trained as a model of its own, or its code cannot be compiled.
        """
        owners = {owner for owner in map(owner_of, self.model.parameters()) if owner is not None}
        if owners - {self.whole}:
            names = " and ".join(sorted(owner.name for owner in owners - {self.whole}))
            raise CaptureError(
                f"{self.name} was called in training mode at {current_line()}, but some of its weights are "
                f"those of {names}, which a device step trains as a model of its own. Call {self.name} before what it "
                f"consists of, or make the optimizer from the parameters of {self.name}."
            )
        values = [
            torch.zeros(leaf.shape.size, dtype=leaf.shape.dtype) if isinstance(leaf, Value) else leaf.tensor
            for leaf in leaves
        ]
        return called_on_host(self.model, structure, values, self.whole.session.weights, self.name)

    def _look_after(self, session: IPUSession) -> None:
        """Let a session, which may be that of an engine over a part, go by what is captured."""
        session.hooks.around_programs(self._without_gradients, self._check_evaluation)
        session.hooks.refuse_frozen_values(_refuse)

    def _check_evaluation(self) -> None:
        self._buffer_writes.check_evaluation(self)

    @contextlib.contextmanager
    def _without_gradients(self) -> Iterator[None]:
        """Take gradients off for a compiler that looks at them, until the `with` block ends."""
        self._gradients.remove()
        try:
            yield
        finally:
            if self.pending:
                self._gradients.place()

    # -- updates --------------------------------------------------------------------------------------------------

    def backward(self, loss: Loss) -> None:
        """Take a loss that went backward."""
        if self._early is not None:
            self._early.check_confirmed()
            raise self._early.error(
                f"now another loss went backward at {loss.line} without that step: the update was made from one "
                "micro-batch where several were meant. When gradients accumulate, keep loss.detach() and read it after "
                "optimizer.step()."
            )
        if self._gradients.gone:
            self._follow_gradients("backward()")
        self._edits.look()
        self.training.modes.check_trained(loss)
        if not self._gradients.placed:
            self._gradients.refuse_those_of_before(held_parameters)
            self._gradients.place()
        if self.pending or self.training.accumulates or self.postponed() is not None:
            keep_inputs(loss.operations, {})
        self.pending.append(loss)
        if self._observer is not None:
            self._observer.went_backward(self)

    def _follow_gradients(self, what: str) -> None:
        """Do with gradients on the device what the loop did with those on the host: it has taken some off.

        Raises:
            CaptureError: It did so with some of them, or too late.
        """
        names, others = self._gradients.taken_off(self.training.trained_in(self.pending))
        if not (self.pending or self.uncleared or self._early):
            return
        if others:
            raise CaptureError(
                f"The gradient of {listed(names, 1)} was set to None before {what} at {current_line()}, and that of "
                f"{listed(others, 1)} was not: PyTorch would use it, also for weights that were frozen since. A device "
                "updates all weights that are trained: to leave some out, set requires_grad_(False) on them before the "
                "model is called; to drop all gradients, call optimizer.zero_grad()."
            )
        self.zero_grad()

    def step(self) -> None:
        """Make the weight update that `optimizer.step()` asks for.

        Raises:
            CaptureError: The step cannot run on the device, or the host has computed the gradients.
            OptimizerError, LossError: The optimizer or the loss cannot.
        """
        if self._gradients.gone:
            self._follow_gradients("step()")
        if self._early is not None:
            self._early.check_confirmed()
            link = self.session.link
            if link is not None and link.changes():
                raise self._early.error(
                    "the optimizer's hyper-parameters were changed in between. Read the value after optimizer.step()."
                )
            self.training.finish_update()
            self.session.hooks.withhold(None)
            self.uncleared, self._early = self._early.line, None
            return
        if self.pending:
            self.training.finish_update()
            line = current_line(above=2)
            self._run()
            self.uncleared = line
        else:
            if self.uncleared is not None:
                refuse_uncleared(self.uncleared)
            self._check_not_zeroed()
            self._gradients.refuse_those_of_the_host()

    def _check_not_zeroed(self) -> None:
        if self.training.zeroed is not None and self.training.prepared:
            raise CaptureError(
                f"step() at {current_line()} follows no backward(), and gradients were made zero, not None, at "
                f"{self.training.zeroed}: PyTorch would update weights with gradients of zero, by their momentum and "
                "weight decay, while a device updates after a backward pass alone. Call "
                "zero_grad(set_to_none=True), or step() after backward() only."
            )

    def zero_grad(self, set_to_none: bool = True, parameters: Callable[[], Iterable[torch.Tensor]] = tuple) -> None:
        """Drop what went backward since the last update, as clearing gradients does.

        Args:
            set_to_none: Whether there are none from now on, or zeros.
            parameters: Returns those whose gradients are cleared, should the host have any.

        Raises:
            CaptureError: The update has run already, for a value that was read.
        """
        if self._early is not None and self._early.awaited:
            self._early.uncleared = None
            self.training.zeroed = None if set_to_none else current_line()
            return
        if self._early is not None:
            raise self._early.error(
                f"now zero_grad() at {current_line()} asks to drop its gradients. Read values after optimizer.step()."
            )
        for loss in self.pending:
            _give_up(loss, f"its gradients were dropped by zero_grad() at {current_line()}")
        self.pending.clear()
        self.uncleared = None
        self.training.zeroed = None if set_to_none else current_line()
        if not self._gradients.placed:
            self._gradients.clear_those_of_the_host(parameters(), set_to_none)

    def run_early(self, value: Value, what: str) -> None:
        """Run the update before `optimizer.step()`, for a value that somebody reads.

        Raises:
            EarlyReadError: The value's loss has not gone backward, or the update is not complete.
        """
        line = current_line()
        if self._early is not None:
            self._early.check_confirmed()
        loss = None if self.pending or self._early or self.postponed() else expected_loss(value, line)
        if loss is None or not self.training.expects(loss):
            loss = None
            check_early_read(self, self.postponed, value, what, line)
        if self.training.optimizer is None:
            self._find_optimizer()
        # Which may train several models as one.
        whole = self.whole
        uncleared = None
        if loss is not None:
            # Gradients of the update before may still be cleared: natively there are none of this one yet.
            uncleared, whole.uncleared = whole.uncleared, None
            whole.backward(loss)
            loss.value.early = whole
        whole._run()
        whole._early = EarlyUpdate(line, loss is not None, uncleared)
        whole.session.hooks.withhold(whole._early)

    def confirm(self, line: Line) -> None:
        """Take that the loss goes backward for which the update has run already.

        Raises:
            CaptureError: Gradients of the update before have not been cleared.
        """
        if self._early is not None:
            if self._early.uncleared is not None:
                refuse_uncleared(self._early.uncleared)
            self._early.awaited = False

    def computes_on_host(self) -> bool:
        """Tell whether the host has the newest weights."""
        return self.whole._early is None and self.whole.session.weights.host_is_newest

    def called_with(self, structure: Structure, tensors: Sequence[torch.Tensor]) -> Any:
        """Return what a call of the model gives on the host, without a trace there."""
        return called_on_host(self.model, structure, tensors, self.whole.session.weights, self.name).output

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        """Let another optimizer than before make the coming updates.

        Raises:
            CaptureError: The update has been made by another one.
        """
        other = self.training.optimizer
        if other is not None and (self._early is not None or not self.pending):
            what = f"for the value read at {self._early.line}" if self._early is not None else "already"
            raise CaptureError(
                f"{type(optimizer).__name__}.step() at {current_line()}: the update was made {what}, by another "
                f"optimizer of the same weights, a {type(other).__name__}. One optimizer makes one update: call "
                "zero_grad() and backward() before each step(), and read values after it."
            )
        self.training.change_optimizer(optimizer)

    def joined(self, others: Sequence[CapturedModel], line: Line) -> List[CapturedModel]:
        """Return what trains this and other models that the loss at a line is computed by, joined where one does."""
        return self._join([self, *others], line)

    def join(self, parts: List[CapturedModel]) -> None:
        """Run the updates and evaluations of other captured models, which are parts of this one's model."""
        for whole in {part.whole: None for part in parts}:
            self.pending += whole.pending
            self._early = self._early or whole._early
            self.uncleared = self.uncleared or whole.uncleared
            self._buffer_writes.take_over(whole._buffer_writes)
            whole.pending = []
        for part in parts:
            before = part.session
            if before is not self.session:
                before.close()
                part._gradients.remove()
                self._look_after(before)
            part._follow(self)
        self.parts = parts

    def _follow(self, whole: CapturedModel) -> None:
        """Be a part of a model from now on."""
        (self.path,) = [name for name, module in whole.model.named_modules() if module is self.model]
        self.whole = whole
        self.session, self.training, self.evaluation = whole.session, whole.training, whole.evaluation
        self.session.serve(self.model)

    def close(self) -> None:
        """End the capture: the model and its optimizer are ordinary ones again, with the newest weights and state.

        Raises:
            SessionError: Something on the device could not be copied; the capture has ended all the same.
        """
        if self.whole is not self:
            return self.whole.close()
        if self.pending:
            _logger.warning(
                "%s was given back before optimizer.step(): the gradients of %d losses that went backward are dropped, "
                "where PyTorch keeps them. Call optimizer.step() or zero_grad() before.",
                self.name,
                len(self.pending),
            )
        for loss in self.pending:
            _give_up(loss, "its model was given back")
        self.pending.clear()
        self._gradients.remove()
        try:
            self.session.close()
        finally:
            if self.training.optimizer is not None:
                release_optimizer(self.training.optimizer)
            for capture in (self, *self.parts):
                release_class(capture.model)
                # A value that the user still holds keeps this alive, but its tensors are not captured any more.
                capture._tensors = {}

    def _run(self) -> None:
        if self.uncleared is not None:
            refuse_uncleared(self.uncleared)
        losses, self.pending = self.pending, []
        if self._buffer_writes.waiting:
            self._buffer_writes.check_update(losses, self)
        if self.training.optimizer is None:
            self._find_optimizer()
        self._edits.check(losses, self)
        try:
            self.training.run(losses)
        except BaseException as error:
            for loss in losses:
                _give_up(loss, f"the step failed: {type(error).__name__}: {error}")
            raise
        if not self._gradients.placed:
            self._gradients.place()

    def _find_optimizer(self) -> None:
        self._join([self], current_line())
        if self.training.optimizer is None:
            raise CaptureError("The model's optimizer is not known: prepare it together with the model.")


def owner_of(tensor: torch.Tensor) -> Optional[CapturedModel]:
    """Return the captured model that has a tensor as its parameter or buffer, None for any other tensor."""
    found = parameter_of(tensor)
    return None if found is None else cast(CapturedModel, found[0])


def _give_up(loss: Loss, problem: str) -> None:
    for operation in loss.operations:
        if not operation.done:
            operation.problem = problem


def _refuse(reason: str) -> None:
    raise CaptureError(reason)
