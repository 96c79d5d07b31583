"""Updates of a captured loop that PyTorch makes on the host: what happens at `backward()` and at `optimizer.step()`.

Each `backward()` is one device call, which brings gradients to `parameter.grad`. From there on everything is PyTorch's:
clearing, clipping, scaling, hooks, and the step of any optimizer.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import (
    AbstractSet,
    Any,
    Callable,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # PyTorch's own, which a script's calls may be substituted for

from ignite_ipu.deferred.compiled.host_programs import Gradients, HostPrograms
from ignite_ipu.deferred.compiled.training import TrainingPrograms
from ignite_ipu.deferred.compiled.update_gradients import saved_by
from ignite_ipu.deferred.graph.operations import CLOCK, USES, Operation, Value, by_number, keep_weights, replayed
from ignite_ipu.deferred.graph.owners import held_tensors
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.obstacles import refuse_spent
from ignite_ipu.deferred.model.processes import average, note_backward
from ignite_ipu.deferred.model.turns import (
    Older,
    Values,
    begin_again,
    forget,
    gradient_path,
    keep_buffers,
    trained_in,
    weights_of,
    written_buffers,
)
from ignite_ipu.deferred.tensor.reads import expected_loss, models_of
from ignite_ipu.errors import CaptureError
from ignite_ipu.optimizers.host_link import note_step
from ignite_ipu.program.tensors.raw import gradient_of, plain, set_gradient
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.data_parallel import has_reducers
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of

Closure = Callable[[], Any]


class _Ahead(NamedTuple):
    """Gradients of a loss that has yet to go backward, computed after so many changes of weights."""

    value: Value
    gradients: Gradients
    changes: int


class HostGradients:
    """The gradients of a loop that PyTorch updates on the host: those of `parameter.grad`."""

    shown = None

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def clear(self, ids: FrozenSet[int], set_to_none: bool) -> None:
        """They are all on the host."""

    def zero_grad(self, module: nn.Module, set_to_none: bool) -> None:
        with self._loop.session.weights.detector.host_steps.stepping():
            nn.Module.zero_grad(module, set_to_none)

    def clip(self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float, given: Any) -> torch.Tensor:
        return clip_grad_norm_(list(parameters), max_norm, norm_type)

    def of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        with DisableTorchFunctionSubclass():
            return gradient_of(parameter)

    def shows(self, parameter: torch.Tensor) -> bool:
        return self.of(parameter) is not None

    def read_norms(self, line: Line) -> bool:
        return False


class HostUpdates:
    """The updates of a loop that PyTorch makes on the host.

    Attributes:
        training: The programs that compute gradients.
        optimizers: The optimizers that have made fused updates before.
    """

    on_host = True
    pending: Sequence[Loss] = ()
    is_ahead, is_known, may_leave, take_turns = False, True, False, False
    accumulates: Optional[bool] = False
    uncleared: Optional[Line] = None

    def __init__(self, loop: Loop) -> None:
        self._loop, self.gradients = loop, HostGradients(loop)
        self.training = HostPrograms(loop.session, loop.setup.config, loop.modes, loop.places)
        self.optimizers: Sequence[torch.optim.Optimizer] = ()
        # Operations that compute with weights, whose values may be referenced, as long as they are.
        self._recorded: weakref.WeakSet[Operation] = weakref.WeakSet()
        self._older: List[Older] = []
        # The last operation that was recorded before a parameter was changed last, by the id of the parameter.
        self._changed: Dict[int, int] = {}
        self._changes = self._last_change = 0
        self._ahead: Optional[_Ahead] = None
        # Since a moment, the last operation that was computed with each parameter, by the id of that.
        self._in_use: Tuple[Tuple[int, int], Dict[int, int]] = ((-1, -1), {})
        loop.edits.keeps = True

    @property
    def programs(self) -> Sequence[TrainingPrograms]:
        return [self.training]

    @property
    def has_trained(self) -> bool:
        return self.training.prepared or bool(self.optimizers)

    def note_call(self, call: Operation) -> None:
        if self._loop.edits.older:
            self._follow_edits()
        if self._older:
            self._release_older()
        self._recorded.add(call)

    def note_write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Keep weights that are about to change, or whose memory is about to be replaced, if they may be needed."""
        needed = self._needed(tensors) if tensors else ()
        if needed:
            self._loop.edits.before_write(needed)

    def note_view(self, tensor: torch.Tensor) -> None:
        """Keep the value of a weight, if it may be needed."""
        needed = self._needed([tensor])
        if needed:
            self._loop.session.weights.to_host()
            self._loop.session.weights.detector.keep(needed)

    def _needed(self, tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """Return those weights whose present values may be needed after they change.

        Something was computed with them that may go backward, and they have not changed since.
        """
        moment = CLOCK.now, CLOCK.settled
        if self._in_use[0] != moment:
            self._in_use = moment, {key: each.number for each in self._pending() for key in weights_of(each)}
        used = self._in_use[1]
        if not used:
            return []
        kept = {id(tensor): older.taken for older in self._older for tensor, value in older.values if value is not None}
        return [tensor for tensor in tensors if used.get(id(tensor), 0) > kept.get(id(tensor), 0)]

    def _pending(self) -> List[Operation]:
        found = (each for each in self._recorded if each.problem is None and each.values and not each.is_spent)
        return sorted(found, key=by_number)

    def _follow_edits(self) -> None:
        """Take the weights from before edits of the loop that were found."""
        for older in self._loop.edits.take():
            self._older.append(older)
            self._changed.update({id(tensor): older.taken for tensor, _ in older.values})
            self._changes += 1
            self._last_change = max(self._last_change, older.taken)

    def check_saved(self, loss: Loss) -> None:
        """Refuse to go backward through weights whose memory was written since, as by `parameter.data`.

        PyTorch computes gradients with a mixture then: results from before, and weights from after.

        Raises:
            CaptureError: Gradients depend on the values of such a weight.
        """
        if self._loop.edits.older:
            self._follow_edits()
        if not [older for older in self._older if older.uncounted or older.replaced]:
            return
        # With each, whether its memory was replaced: autograd has the new one if it has saved the weight itself.
        ids = {
            key: key in older.replaced
            for operation in loss.operations
            for key in weights_of(operation)
            for older in self._older
            if key in (older.uncounted | older.replaced) and older.taken >= operation.number
        }
        if not ids:
            return
        saved = saved_by([loss], self._loop.modes.parameters, trained_in(loss))
        if any(saved.get(key, False) if replaced else key in saved for key, replaced in ids.items()):
            raise CaptureError(
                f"The loss goes backward at {loss.line}, and memory of weights was written after it was computed, as "
                "parameter.data is. PyTorch would compute gradients from earlier results with later weights. "
                "Write into weights after backward(), or under torch.no_grad(), which PyTorch checks."
            )

    def keep_older(self, older: Sequence[Older]) -> None:
        """Keep weights from before updates on the device, as long as something computed with them may go backward."""
        self._older += older
        self._release_older()

    def _release_older(self) -> None:
        """Discard previous weights that no loss which may still go backward depends on."""
        if self._older:
            first = min((each.number for each in self._pending()), default=None)
            self._older = [] if first is None else [each for each in self._older if each.taken >= first]

    def leave_device(self, reason: str, error: Optional[Exception] = None) -> None:
        """They are on the host already."""

    def are_stale(self, call: Operation) -> bool:
        return not call.done and any(self._changed.get(key, 0) >= call.number for key in weights_of(call))

    def weights_then(self, operation: Operation) -> Optional[Values]:
        if self._loop.edits.older:
            self._follow_edits()
        values: Values = []
        for key in () if operation.done else weights_of(operation) & self._changed.keys():
            if operation.number <= self._changed[key]:
                then = self._value_then(key, operation)
                if then is None:
                    return None
                values.append(then)
        return values

    def merge(self, other: Any) -> None:
        if isinstance(other, HostUpdates):
            self._recorded.update(other._recorded)
            self._older += other._older
            self._changed.update(other._changed)
            self._changes += other._changes
            self._last_change = max(self._last_change, other._last_change)

    def go_on_from(self, before: Any) -> None:
        if isinstance(before, HostUpdates):
            self.merge(before)

    def forget_programs(self) -> None:
        self.training.forget_program()

    def discard(self, problem: str) -> None:
        """Keep the gradients, which are PyTorch's."""

    def backward(self, loss: Loss) -> None:
        """Add the gradients of a loss to those of the parameters that it depends on."""
        if loss.value.operation.of_weights:
            self._backward_on_host(loss)
            return
        synchronised = note_backward(loss) if has_reducers() else []
        self._gradients_of(loss).accumulate()
        if synchronised:
            average(synchronised, self._loop.modes.parameters)

    def gradients_of(self, loss: Loss, parameters: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        """Return the gradients of a loss, as `torch.autograd.grad` does; None for parameters without any."""
        refuse_spent(loss)
        found = self._gradients_of(loss)
        by_id = {id(parameter): value for parameter, value in zip(found.parameters, found.values)}
        return [by_id.get(id(parameter)) for parameter in parameters]

    def _gradients_of(self, loss: Loss) -> Gradients:
        """Have the device compute the gradients of a loss, unless a read of its value has."""
        self._loop.edits.look()
        self.check_saved(loss)
        ahead, self._ahead = self._ahead, None
        path = {} if loss.retained else gradient_path(loss.value)
        if ahead is not None and ahead.value is loss.value and ahead.changes == self._changes:
            forget(path)
            return ahead.gradients
        return self._compute(loss, lambda operation: operation.signature.trains and operation not in path)

    def follow_device(self, stepped: Mapping[int, int], older: Sequence[Older]) -> None:
        """Go on from updates on the device: by `id`, when parameters were changed last, and weights before updates."""
        self._changed.update({key: max(when, self._changed.get(key, 0)) for key, when in stepped.items() if when})
        self._last_change = max(self._last_change, *stepped.values())
        self._older += older

    def add_gradients(self, loss: Loss, ids: Container[int], weights: Optional[Values] = None) -> None:
        """Add the gradients of a loss that went backward before to those of some parameters.

        `weights` has all weights as they were then, if they are kept.
        """
        path = {} if loss.retained else gradient_path(loss.value)
        found = self._compute(loss, lambda operation: operation.signature.trains and operation not in path, weights)
        with DisableTorchFunctionSubclass(), torch.no_grad():
            for parameter, value in zip(found.parameters, found.values):
                before = gradient_of(parameter)
                if id(parameter) in ids:
                    set_gradient(parameter, value if before is None else before.add_(value))

    def _backward_on_host(self, loss: Loss) -> None:
        """Compute a loss from weights alone, as a penalty, and its gradients by PyTorch: no program has no inputs."""
        self._loop.edits.check(loss.operations, self._loop, "The gradient")
        with torch.enable_grad():
            results = replayed(loss.operations, lambda leaf, operation: leaf.tensor)
        results[loss.value.operation][loss.value.index].backward()  # type: ignore[no-untyped-call]
        for operation, tensors in results.items():
            operation.settle([tensor.detach() for tensor in tensors])

    def read(self, value: Value, operations: Sequence[Operation]) -> Optional[Closure]:
        """Return a function that computes a value before `backward()`, with the gradients of its expected loss."""
        loss = expected_loss(value, current_line())
        if loss is None or not {each for each in operations if not each.done} <= set(loss.operations):
            return None
        if any(each.signature.evaluates for each in operations) and not self.training.expects(loss):
            return None  # it need not go backward
        return functools.partial(self._compute_ahead, loss)

    def run_ahead(self, ids: AbstractSet[int], losses: Sequence[Loss]) -> None:
        for loss in losses:
            self._compute_ahead(loss)

    def _compute_ahead(self, loss: Loss) -> None:
        if loss.value.known:
            return  # by a read of the same loss through another of its models
        models = models_of(loss.operations, "a read", loss.line)
        if any(model.loop is not self._loop for model in models):
            # One program has all calls of the loss, as for backward().
            self._loop.joined(models, loss.line)[0].updates.run_ahead(frozenset(), [loss])
            return
        gradients = self._compute(loss, lambda operation: True)
        self._ahead = _Ahead(loss.value, gradients, self._changes)

    def _compute(self, loss: Loss, keeps: Callable[[Operation], bool], before: Optional[Values] = None) -> Gradients:
        loop, operations = self._loop, loss.operations
        if loop.buffers.waiting:
            loop.buffers.before_update([loss], loop, waits=True, steps=False)
        loop.edits.look()
        self._follow_edits()
        if before is None:
            loop.edits.check(operations, loop, "The gradient", unless_kept=True)
            before = self._values_then(operations)
        older = [*before, *begin_again(operations)]
        retained = {each for each in operations if loss.retained and keeps(each)}
        keep_buffers(operations, retained, keeps, loop.session.weights)
        if USES:
            USES.difference_update(operations)
        try:
            with loop.buffers.in_update(operations):
                return self.training.compute([loss], keeps, older)
        except BaseException as error:
            for operation in operations:
                if not operation.done:
                    operation.problem = f"the device call failed: {type(error).__name__}: {error}"
            raise

    @contextlib.contextmanager
    def stepping(self, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[Closure], Closure]]:
        """Have an optimizer step in the `with` block; gives a function that wraps the closure of its step."""
        weights, held = self._loop.session.weights, held_tensors(optimizer)
        if USES:
            keep_weights([self._loop])
        self._keep_older(held)
        if self._loop.evaluations.waiting:
            self._loop.evaluations.before_weights_change()
        self._loop.buffers.before_weights_change()
        before = _versions(held)

        def note_changes() -> None:
            nonlocal before
            now, loop = _versions(held), self._loop.now  # a closure may have joined it with others
            loop.updates.note_changes([id(each) for each, one, other in zip(held, before, now) if one != other])
            before = now
            loop.session.weights.look()
            loop.edits.ignore()

        with weights.detector.host_steps.stepping() as as_before:

            def wrapped(closure: Closure) -> Closure:
                def call() -> Any:
                    note_changes()
                    loss = closure()
                    self._clip(held)
                    return loss

                return as_before(call)

            self._clip(held)
            yield wrapped
        note_changes()
        note_step(optimizer)

    def note_changes(self, changed: Sequence[int]) -> None:
        self._changed.update(dict.fromkeys(changed, CLOCK.now))
        if changed:
            self._changes += 1
            self._last_change = CLOCK.now

    def _clip(self, held: Sequence[torch.Tensor]) -> None:
        max_norm = self._loop.setup.config.max_grad_norm
        if max_norm is not None:
            clip_grad_norm_(list(held), max_norm)

    def _keep_older(self, held: Sequence[torch.Tensor]) -> None:
        """Keep weights that are about to change, if something that may go backward was computed with them."""
        self._loop.edits.look()
        self._follow_edits()
        self._release_older()
        needed = self._needed(held)
        if needed:
            self._older.append(Older(CLOCK.now, [(each, plain(each).clone()) for each in needed]))

    def _values_then(self, operations: Sequence[Operation]) -> Values:
        """Return the weights that have changed since operations were recorded, with their values at that time."""
        if not self._changed or operations[0].number > self._last_change:
            return []
        # By the id of a weight: the value that earlier operations have used, None for the current one.
        used: Dict[int, Any] = {}
        for operation in operations:
            # An update begins with the buffers that a replayed call began with.
            written = {id(buffer) for buffer in written_buffers(operation).values()}
            replayed = self._loop.buffers.is_replayed(operation)
            for key in weights_of(operation) & self._changed.keys():
                stale = operation.number <= self._changed[key]
                if key in written:
                    lost, then = stale and not replayed, None
                else:
                    then = self._value_then(key, operation) if stale else None
                    lost = stale and then is None
                if lost or used.setdefault(key, then) is not then:
                    raise CaptureError(
                        f"The loss that goes backward at {current_line()} is computed at {operation.line} with weights "
                        "that have changed since or before. Their values at that time are unknown, or the loss is "
                        "computed with others, too. A device call has one set of weights. Call backward() before "
                        "optimizer.step(), or compute everything anew after it."
                    )
        return [pair for pair in used.values() if pair is not None]

    def _value_then(self, key: int, operation: Operation) -> Any:
        """Return a weight, by its id, with the value that it had when an operation was recorded; None if it is lost."""
        kept = (older for older in self._older if older.taken >= operation.number)
        found = next((pair for older in kept for pair in older.values if id(pair[0]) == key), None)
        return None if found is None or found[1] is None else found


def _versions(tensors: Sequence[torch.Tensor]) -> List[Any]:
    with DisableTorchFunctionSubclass():
        return list(zip(map(version_of, tensors), map(torch.Tensor.data_ptr, tensors)))
