"""Updates of a captured loop that PyTorch makes on the host: what happens at `backward()` and at `optimizer.step()`.

Each `backward()` is one device call, which brings gradients to `parameter.grad`. From there on everything is PyTorch's:
clearing, clipping, scaling, hooks, and the step of any optimizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import (
    AbstractSet,
    Any,
    Callable,
    Container,
    FrozenSet,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # PyTorch's own, which a script's calls may be substituted for

from ignite_ipu.deferred.compiled.host_programs import Gradients, HostPrograms
from ignite_ipu.deferred.compiled.replayed_losses import mixed_gradients
from ignite_ipu.deferred.compiled.training import TrainingPrograms
from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.operations import CLOCK, USES, Operation, Value, leave_uses
from ignite_ipu.deferred.graph.owners import held_tensors
from ignite_ipu.deferred.graph.state import Older, Values, trained_in, written_buffers, written_ids
from ignite_ipu.deferred.graph.step_graph import Loss, ancestors, gradient_path
from ignite_ipu.deferred.graph.uses import keep_weights
from ignite_ipu.deferred.model.buffers import BOOKS, BufferBook
from ignite_ipu.deferred.model.call_replays import nothing
from ignite_ipu.deferred.model.kept_weights import KeptWeights
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.processes import average, note_backward
from ignite_ipu.deferred.model.reruns import with_reruns
from ignite_ipu.deferred.model.turns import forget
from ignite_ipu.deferred.tensor.inputs import gradients_return
from ignite_ipu.deferred.tensor.lost_gradients import LOST, lost_aside
from ignite_ipu.deferred.tensor.reads import expected_loss, models_of
from ignite_ipu.deferred.tensor.written_tensors import WAITING, write_known
from ignite_ipu.errors import CaptureError, EarlyReadError, logger
from ignite_ipu.optimizers.host_link import note_step
from ignite_ipu.program.tensors.raw import gradient_of, named_tensors, plain, set_gradient
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.data_parallel import Reducer
from ignite_ipu.session.weights.edit_detector import HostStep
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

Closure = Callable[[], Any]


@contextlib.contextmanager
def _restored_if_failed(book: BufferBook, operations: Sequence[Operation]) -> Iterator[None]:
    """Restore the entries of operations in a book if their update in the `with` block is refused, or fails.

    PyTorch has written their buffers in the forward: the host replays the calls.
    """
    restore, done = book.state(), [each.done for each in operations]
    try:
        yield
    except BaseException:
        if done == [each.done for each in operations]:
            restore()
        raise


class _Ahead(NamedTuple):
    """Gradients of a loss that has yet to go backward, computed after so many changes of weights."""

    value: Value
    gradients: Gradients
    changes: int


class HostGradients:
    """The gradients of a loop that PyTorch updates on the host: those of `parameter.grad`.

    Args:
        loop: The loop.
        training: The programs that compute gradients.
        kept: Previous values of weights.
    """

    shown = None

    def __init__(self, loop: Loop, training: HostPrograms, kept: KeptWeights) -> None:
        self._loop, self._training, self._kept = loop, training, kept
        self._ahead: Optional[_Ahead] = None
        self._has_told = False

    def clear(self, ids: FrozenSet[int], set_to_none: bool) -> None:
        """They are all on the host."""

    def zero_grad(self, module: nn.Module, set_to_none: bool) -> None:
        with HostStep(self._loop.session.weights.detector):
            nn.Module.zero_grad(module, set_to_none)

    def clip(self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float, given: Any) -> torch.Tensor:
        return clip_grad_norm_(list(parameters), max_norm, norm_type)

    def of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        with DisableTorchFunctionSubclass():
            return gradient_of(parameter)

    def shows(self, parameters: Sequence[torch.Tensor]) -> List[bool]:
        return [self.of(each) is not None for each in parameters]

    def read_norms(self, line: Line) -> bool:
        return False

    def of_loss(self, loss: Loss, parameters: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        """Return the gradients of a loss, as `torch.autograd.grad` does; None for parameters without any."""
        return self.computed(loss, parameters).of(parameters)

    def add(self, loss: Loss, ids: Container[int], weights: Optional[Values] = None) -> Mapping[int, torch.Tensor]:
        """Add the gradients of a loss that went backward before to those of some parameters.

        `weights` has all weights as they were then, if they are kept; None if the loss waits for its update. Returns
        the buffers that its calls have written with such weights, by `id`.
        """
        if weights is None:
            # Other losses of the update have given some of its operations their values by now.
            loss = dataclasses.replace(loss, operations=ancestors(loss.value))
        path = {} if loss.retained else gradient_path(loss.value)
        self._loop.edits.look()
        found = self._compute(loss, lambda operation: operation.signature.trains and operation not in path, weights)
        with DisableTorchFunctionSubclass(), torch.no_grad():
            for parameter, value in zip(found.parameters, found.values):
                before = gradient_of(parameter)
                if id(parameter) in ids:
                    set_gradient(parameter, value if before is None else before.add_(value))
        return found.written or {}

    def compute_ahead(self, loss: Loss) -> None:
        """Have the device compute a loss before it goes backward, with its gradients."""
        if loss.value.known:
            return  # by a read of the same loss through another of its models
        models = models_of(loss.operations, "a read", loss.line)
        if any(model.loop is not self._loop for model in models):
            # One program has all calls of the loss, as for backward().
            self._loop.setup.join(models, loss.line)[0].updates.run_ahead(frozenset(), [loss])
            return
        self._loop.edits.look()
        # Another loss may be computed from it, whose calls then begin with the same buffers.
        gradients = self._compute(dataclasses.replace(loss, retained=True), lambda operation: True)
        leaves = [leaf for operation in loss.operations for leaf in operation.leaves if type(leaf) is Input]
        # Gradients through copies of weights, as in the closure of a step, come when the loss goes backward.
        if all(leaf.weight is None for leaf in leaves):
            self._ahead = _Ahead(loss.value, gradients, self._kept.changes)

    def computed(self, loss: Loss, asked: Optional[Sequence[torch.Tensor]] = None) -> Gradients:
        """Have the device compute gradients of a loss, at least those `asked` for, unless a read of its value has."""
        held = self._loop.session.weights.held
        if held.is_replaced:
            with held.put_back():
                return self.computed(loss, asked)
        self._loop.edits.look()
        if self._kept.mixes(loss):
            return self._of_mixture(loss, trained_in(loss) if asked is None else frozenset(map(id, asked)))
        ahead, self._ahead = self._ahead, None
        path = {} if loss.retained else gradient_path(loss.value)
        if ahead is not None and ahead.value is loss.value and ahead.changes == self._kept.changes:
            forget(path)
            return dataclasses.replace(ahead.gradients, retained=loss.retained)
        return self._compute(loss, lambda operation: operation.signature.trains and operation not in path)

    def _of_mixture(self, loss: Loss, asked: FrozenSet[int]) -> Gradients:
        """Have PyTorch compute a loss and some gradients on the host, with weights that were written in between.

        A program has one value of each weight, for the forward and for the gradients.

        Raises:
            CaptureError: The host cannot replay the calls.
        """
        loop, operations = self._loop, loss.operations
        what = (
            f"The loss goes backward at {loss.line}, and weights were written while it was computed, or after that. "
            "PyTorch computes gradients from earlier results with later weights."
        )
        remedy = "Write into weights after backward()."
        changes = self._kept.changes_since(operations[0])
        written = frozenset().union(*map(written_ids, operations))
        pairs = [pair for change in changes for pair in change.values]
        known = all(value is not None and id(each) not in written for each, value in pairs)
        if not known or any(each.signature.draws for each in operations) or gradients_return(loss):
            raise CaptureError(
                f"{what} The host does so if it knows their values at that time, no call of the loss writes them, and "
                f"the loss has no random numbers and no gradients of inputs. {remedy}"
            )
        if not self._has_told:
            self._has_told = True
            logger.warning("%s So such a loss is computed on the host. %s", what, remedy)
        try:
            loop.buffers.before_read()
        except EarlyReadError as error:
            raise CaptureError(f"{what} {error} {remedy}") from None
        with contextlib.ExitStack() as stack:
            stack.enter_context(_restored_if_failed(loop.buffers, operations))
            loop.buffers.before_update([loss], loop, nothing)
            retained = {each for each in operations if loss.retained and each.signature.trains}
            leave_uses(operations)
            stack.enter_context(loop.buffers.in_update(operations))
            stack.enter_context(with_reruns(operations, retained, retained.__contains__, loop.buffers))
            tensors = [*loop.modes.parameters, *[each for each, _ in pairs]]
            found, results = mixed_gradients(loss, tensors, asked, changes)
        for operation, tensors in results.items():
            if not operation.done:
                operation.settle([tensor.detach() for tensor in tensors], keep=operation in retained)
        CLOCK.settled = CLOCK.now
        if WAITING:
            write_known()
        anchored = AnchoredGradients(own=True)
        named = {id(each): name for name, each in named_tensors(loop.module).items()}
        anchored.parameters = [each for each in loop.modes.parameters if found.get(id(each)) is not None]
        anchored.names = [named[id(each)] for each in anchored.parameters]
        return Gradients(anchored, [found[id(each)] for each in anchored.parameters])

    def _compute(self, loss: Loss, keeps: Callable[[Operation], bool], before: Optional[Values] = None) -> Gradients:
        """Have the device compute the gradients of a loss, after a look for edits."""
        loop, operations = self._loop, loss.operations
        weights, is_empty = loop.session.weights, loop.buffers.is_empty
        with contextlib.ExitStack() as stack:
            if not is_empty:
                stack.enter_context(_restored_if_failed(loop.buffers, operations))
                loop.buffers.before_update([loss], loop, nothing)
            if loop.edits.older:
                self._kept.follow_edits()
            if before is None:
                loop.edits.check(operations, loop, "The gradient", unless_kept=True)
                before = self._kept.values_then(loss)
            if not is_empty:
                stack.enter_context(loop.buffers.in_update(operations))
            retained = {each for each in operations if loss.retained and keeps(each)}
            try:
                with with_reruns(operations, retained, keeps, loop.buffers, before) as is_older:
                    if USES:
                        leave_uses(operations)
                    found = self._training.compute([loss], keeps)
                    if not is_older:
                        return found
                    weights.to_host()
                    buffers = [each for operation in operations for each in written_buffers(operation).values()]
                    written = {id(each): plain(each).clone() for each in buffers}
                    return dataclasses.replace(found, written=written)
            except CaptureError:
                raise  # before the device call: another loss of the same calls may go backward
            except BaseException as error:
                for operation in operations:
                    if not operation.done:
                        operation.problem = f"the device call failed: {type(error).__name__}: {error}"
                raise


class HostUpdates:
    """The updates of a loop that PyTorch makes on the host.

    Attributes:
        gradients: The gradients, by the device.
        training: The programs that compute them.
        optimizers: The optimizers that have made fused updates before.
        weights: Previous values of weights.
    """

    on_host = True
    pending: Sequence[Loss] = ()
    is_ahead, is_known, may_leave, take_turns = False, True, False, False
    accumulates: Optional[bool] = False

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.training = HostPrograms(loop.session, loop.setup.config, loop.modes, loop.places, loop.random_streams)
        self.optimizers: Sequence[torch.optim.Optimizer] = ()
        self.weights = KeptWeights(loop)
        self.gradients = HostGradients(loop, self.training, self.weights)

    @property
    def programs(self) -> Sequence[TrainingPrograms]:
        return [self.training]

    @property
    def has_trained(self) -> bool:
        return self.training.prepared or bool(self.optimizers)

    def leave_device(self, reason: str, error: Optional[Exception] = None) -> None:
        """They are on the host already."""

    def merge(self, other: Any) -> None:
        if isinstance(other, HostUpdates):
            self.weights.merge(other.weights)

    def go_on_from(self, before: Any) -> None:
        if isinstance(before, HostUpdates):
            self.merge(before)
            self.optimizers, self.training.told = before.optimizers, before.training.told

    def forget_programs(self) -> None:
        self.training.forget_program()

    def discard(self, problem: str) -> None:
        """Keep the gradients, which are PyTorch's."""

    def backward(self, loss: Loss) -> None:
        """Add the gradients of a loss to those of the parameters that it depends on."""
        with lost_aside() if LOST else contextlib.nullcontext():
            synchronised = note_backward(loss) if Reducer.made else []
            self.gradients.computed(loss).accumulate()
            if synchronised:
                average(synchronised, self._loop.modes.parameters)

    def awaits_more(self) -> Optional[str]:
        """Return None: each loss is computed as it goes backward."""
        return None

    def read(self, value: Value, operations: Sequence[Operation]) -> Optional[Closure]:
        """Return a function that computes a value before `backward()`, with the gradients of its expected loss."""
        loss = expected_loss(value, current_line())
        if loss is None or not {each for each in operations if not each.done} <= set(loss.operations):
            return None
        if any(each.signature.evaluates for each in operations) and not self.training.expects(loss):
            return None  # it need not go backward
        return functools.partial(self.gradients.compute_ahead, loss)

    def run_ahead(self, ids: AbstractSet[int], losses: Sequence[Loss]) -> None:
        for loss in losses:
            self.gradients.compute_ahead(loss)

    @contextlib.contextmanager
    def stepping(self, optimizer: torch.optim.Optimizer) -> Iterator[Callable[[Closure], Closure]]:
        """Have an optimizer step in the `with` block; gives a function that wraps the closure of its step."""
        held = held_tensors(optimizer)
        if USES:
            keep_weights([self._loop])
        before = self.weights.keep_before_step(held)
        if self._loop.evaluations.waiting:
            self._loop.evaluations.before_weights_change()
        if self._loop.buffers.waiting or BOOKS:
            self._loop.buffers.before_weights_change()
        detector, max_norm = self._loop.session.weights.detector, self._loop.setup.config.max_grad_norm

        def note_changes(before: Optional[Older] = None) -> None:
            loop = self._loop.now  # a closure may have joined it with others
            if loop.session.weights.detector is not detector:
                loop.session.weights.detector.note_step(held, [None] * len(held))
            written = loop.edits.ignore()
            loop.updates.weights.note_changes([key for key in map(id, held) if key in written], before)

        with HostStep(detector, held) as step:

            def wrapped(closure: Closure) -> Closure:
                def call() -> Any:
                    note_changes()
                    loss = closure()
                    if max_norm is not None:
                        clip_grad_norm_(list(held), max_norm)
                    return loss

                return step.as_before(call)

            if max_norm is not None:
                clip_grad_norm_(list(held), max_norm)
            yield wrapped
        note_changes(before)
        note_step(optimizer)
