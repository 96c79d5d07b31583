"""One captured loop: the models that are trained together, the books of their writes, and their updates."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import (
    TYPE_CHECKING,
    AbstractSet,
    Any,
    Callable,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
)

import torch
from torch import nn

from ignite_ipu.deferred.compiled.evaluation import CapturedEvaluation
from ignite_ipu.deferred.compiled.modes import Modes, refuse_earlier, refuse_replaced
from ignite_ipu.deferred.compiled.places import Places
from ignite_ipu.deferred.compiled.random_streams import RandomStreams
from ignite_ipu.deferred.compiled.training import TrainingPrograms
from ignite_ipu.deferred.events import IGNORING, CaptureObserver
from ignite_ipu.deferred.graph.operations import CLOCK, Operation, Value
from ignite_ipu.deferred.graph.owners import Captured, release_optimizer
from ignite_ipu.deferred.graph.state import Older, Values
from ignite_ipu.deferred.graph.step_graph import Loss
from ignite_ipu.deferred.model.buffers import BufferBook
from ignite_ipu.deferred.model.edits import WeightEdits
from ignite_ipu.deferred.model.evaluations import EvaluationBook
from ignite_ipu.deferred.model.following import LoopFollower, Withheld
from ignite_ipu.deferred.model.host_reads import HostReads
from ignite_ipu.deferred.model.waiting import settle_sharing
from ignite_ipu.deferred.tensor.stored_values import bring_stored
from ignite_ipu.errors import EarlyReadError, logger
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.hooks import Gradients
from ignite_ipu.session.session import IPUSession

if TYPE_CHECKING:
    from ignite_ipu.pipeline import PipelineRequest


class LoopGradients(Protocol):
    """The gradients of a loop's parameters, as PyTorch has them now."""

    @property
    def shown(self) -> Optional[Gradients]:
        """Shows and follows `parameter.grad`; None where the attribute is PyTorch's."""

    def of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Return the gradient of a parameter as PyTorch has it now, if any."""

    def shows(self, parameters: Sequence[torch.Tensor]) -> List[bool]:
        """Return whether there is one of each of some parameters, without bringing anything to the host."""

    def read_norms(self, line: Line) -> bool:
        """Have the host compute awaited norms of gradients, which are read at a line; returns whether it could."""

    def clip(self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float, given: Any) -> torch.Tensor:
        """Clip the gradients of parameters to a norm, and return the one before."""

    def clear(self, ids: FrozenSet[int], set_to_none: bool) -> None:
        """Clear the gradients of parameters that are not on the host, to None or to zeros."""

    def zero_grad(self, module: nn.Module, set_to_none: bool) -> None:
        """Clear gradients as `zero_grad` of a module does, the loop's or a part of it."""


class UsedWeights(Protocol):
    """The weights that recorded calls have used, as long as gradients of the calls may need them."""

    @property
    def note_call(self) -> Optional[Callable[[Operation], None]]:
        """Notes a call of a model that was recorded; None if no weights are kept for calls."""

    def awaits(self, model: Captured) -> bool:
        """Return whether an update is still to come of a noted call of a model."""

    def note_write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that tensors are about to be written, or that weights are to be frozen if there are none."""

    def note_view(self, tensor: torch.Tensor) -> None:
        """Note a view of a weight, through which code may write into it."""

    def then(self, operation: Operation) -> Optional[Values]:
        """Return the weights that have changed since an operation used them, as they were; None if some are lost."""

    def note_changes(self, changed: Sequence[int], before: Optional[Older] = None) -> None:
        """Note that PyTorch has changed weights, by their ids; of those `before` a step, only these are needed."""

    def are_stale(self, call: Operation) -> bool:
        """Return whether weights that a call used have been updated since."""


class Updates(Protocol):
    """The weight updates of a loop, by any number of optimizers. There are two kinds.

    `FusedUpdates` make loss, gradients and update in one device step. `HostUpdates` bring gradients back at each
    `backward()`, and PyTorch makes the updates.

    Attributes:
        on_host: Whether PyTorch makes them.
    """

    on_host: bool

    @property
    def gradients(self) -> LoopGradients: ...

    @property
    def weights(self) -> UsedWeights: ...

    @property
    def programs(self) -> Sequence[TrainingPrograms]:
        """The programs of each optimizer, or of all together that step on the host."""

    @property
    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """The known optimizers."""

    @property
    def take_turns(self) -> bool:
        """True if each of several optimizers has programs of its own."""

    @property
    def pending(self) -> Sequence[Loss]:
        """Losses that went backward and of which no update has been made."""

    @property
    def is_ahead(self) -> bool:
        """True if an update was made before its `optimizer.step()`, which is still to come."""

    @property
    def is_known(self) -> bool:
        """True if the device has computed all that went backward, and is not ahead of the loop."""

    @property
    def has_trained(self) -> bool:
        """True if weights were updated, or there are gradients."""

    @property
    def accumulates(self) -> Optional[bool]:
        """True if an update so far was made from several micro-batches; None before the first."""

    @property
    def may_leave(self) -> bool:
        """True if updates may be made on the host from some moment on."""

    def backward(self, loss: Loss) -> None:
        """Let a loss go backward."""

    def awaits_more(self) -> Optional[str]:
        """Return the reason why further losses may go backward through calls of the pending ones, or None."""

    def read(self, value: Value, operations: Sequence[Operation]) -> Optional[Callable[[], None]]:
        """Return a function that computes a value before its `optimizer.step()`; None if there is no way."""

    def run_ahead(self, ids: AbstractSet[int], losses: Sequence[Loss]) -> None:
        """Make the update of parameters, by their ids, before its step; losses go backward for it before."""

    def leave_device(self, reason: str, error: Optional[Exception] = None) -> None:
        """Make updates on the host from here on, for a reason; raise an error instead if that is not allowed."""

    def merge(self, other: Any) -> None:
        """Take over the books of a loop that is joined with this one."""

    def go_on_from(self, before: Any) -> None:
        """Go on from the updates of the same loop with other weights, of which some may be left."""

    def forget_programs(self) -> None:
        """Give programs back; each optimizer is an ordinary one, with its state, until the next update."""

    def discard(self, problem: str) -> None:
        """Discard all that went backward, for a reason."""


class SteadyState(Protocol):
    """The facts of a loop's last update, with which its events need no look at the books.

    Each event returns False, before it has any effect, if it takes more than these facts.
    """

    def clear(self, optimizer: torch.optim.Optimizer) -> bool:
        """Clear the gradients of the last update to None."""

    def backward(self, loss: Loss) -> bool:
        """Let the first loss since gradients were cleared go backward."""

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Make the update of the one loss that went backward as the last one."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Settings with which the models of a loop are captured.

    Attributes:
        config: How programs are compiled.
        updates: Makes the updates of a loop, on the host if they have been so before.
        join: Joins the loops of models that a loss at a line is computed by, and returns those that are left. They
            know their optimizers then.
        postponed: Called when a value is read between backward and `optimizer.step()`: returns why the update cannot
            run yet, None if it can.
        clip_remedy: Clipping advice for a loop that writes into `parameter.grad`.
        observer: Follows the captured models.
    """

    config: IPUConfig
    updates: Callable[[Loop, bool], Updates]
    join: Callable[[Sequence[Any], Line], List[Loop]]
    postponed: Callable[[], Optional[str]] = lambda: None
    clip_remedy: Optional[str] = None
    observer: CaptureObserver = IGNORING


class Loop:
    """The captured models that are trained together, the books of their writes, and their updates.

    Args:
        module: The module that PopTorch compiles: the one model, or one of all models.
        tops: The modules of the models that are no parts of others of the loop.
        places: Requests for the IPUs of the models, by their paths; if None, the configuration's for one model.

    Attributes:
        now: The loop that this one has become a part of, or this one.
        withheld: The update that was made before its step, whose weights are not shown.
        steady: The facts of the last update, None if the next event needs a look at the books.
        models: The captured models, parts of others included.
        random_streams: The random states that programs go on from.
        reads: Checks of reads that the host computes with the weights.
        modes: The modes of the module.
        edits, buffers, evaluations: Writes on the host, and the books of buffers that calls write and of calls in
            evaluation mode.
    """

    def __init__(
        self,
        module: nn.Module,
        tops: Sequence[nn.Module],
        setup: Setup,
        places: Optional[Mapping[str, PipelineRequest]] = None,
    ) -> None:
        self.module, self.tops, self.setup = module, tops, setup
        self._asked_places = places
        self.models: List[Captured] = []
        self.reads = HostReads(self)
        self.withheld = Withheld()
        self.now = self
        self._absorbed = [self]
        self.steady: Optional[SteadyState] = None
        self.random_streams = RandomStreams()
        self._begin()

    def _begin(self, on_host: bool = False) -> None:
        self.session = session = IPUSession.of(self.module)
        session.trainers.refuse_second()
        asked, config = self._asked_places, self.setup.config
        self.places = Places.of(self.module, config) if asked is None else Places(self.module, asked)
        self.modes = Modes(self.module, session.weights)
        self.edits = WeightEdits(session.weights)
        self.evaluations = EvaluationBook(session.weights)
        self.buffers = BufferBook(self.edits, self.evaluations, session.weights)
        self.evaluation = CapturedEvaluation(session, config, self.places)
        self.updates = self.setup.updates(self, on_host)
        self.guide(session)
        session.weights.detector.watch_evaluation()

    def guide(self, session: IPUSession) -> None:
        """Connect a session, which may be that of an engine over a part, to the captured models."""
        shown, records = self.updates.gradients.shown, session is self.session
        books = (self.buffers, self.evaluations, self.edits)
        follower = LoopFollower(self.name, *books, shown, self.withheld, records, self.updates.weights.note_view)
        session.hooks.follow_by(follower)

    @property
    def name(self) -> str:
        return str(getattr(self.module, "joined_names", type(self.module).__name__))

    @property
    def compilations(self) -> int:
        """Number of training programs that were compiled."""
        return sum(programs.compilations.count for programs in self.updates.programs)

    def adopt(self, model: Captured) -> None:
        """Make a captured model one of the loop."""
        model.follow(self)
        self.models.append(model)
        self.buffers.shared.add(model.model.buffers())
        self.session.serve(model.model)

    def begin_again(self) -> bool:
        """Take the models as they are now, with the optimizers' state there is; returns whether that was possible.

        Loops make layers in a model's first call, put another head on it for another task, and prune it, again and
        again. Between the losses of an update and the update, gradients come to the host first. Loops with which the
        models have buffers in common then are joined with this one.
        """
        if not self.updates.is_known and self.updates.may_leave:
            self.updates.leave_device(f"Parts of {self.name} were replaced between backward() and the step.")
        before = self.updates
        self.evaluations.before_weights_change()
        with contextlib.suppress(EarlyReadError):
            self.buffers.before_read()
            # Calls of before cannot be computed any more then.
            bring_stored(map(vars, self.module.modules()))
        if not (before.is_known and self.buffers.is_settled):
            return False
        if any(programs.prepared for programs in before.programs):
            logger.warning(
                "Weights of %s were replaced, added or removed before it was called at %s: its programs are compiled "
                "again. On IPUs each compilation takes minutes.",
                self.name,
                current_line(),
            )
        before.forget_programs()
        self.session.close()
        detector = self.session.weights.detector
        self._begin(before.on_host)
        self.modes.since = CLOCK.now
        self.session.weights.detector.inherit(detector)
        within, models = set(map(id, self.module.modules())), self.models
        self.models = []
        for model in models:
            if id(model.model) in within:
                self.adopt(model)
            else:
                model.release()
        self.updates.go_on_from(before)
        others = [other for model in self.models for other in model.others_with_buffers()]
        if others:
            self.setup.join([*others, *self.models], current_line())
        return True

    def take_replaced(self) -> None:
        """Begin again if parts of the models were replaced; raise a ReplacedError if that is not possible."""
        if self.session.weights.held.is_replaced and not self.begin_again():
            refuse_replaced(self.session.weights, self.module)

    def merge(self, others: Sequence[Loop]) -> None:
        """Take over the models and the books of other loops, whose modules are in this one's."""
        for other in others:
            self.edits.merge(other.edits)
            self.buffers.merge(other.buffers)
            self.evaluations.merge(other.evaluations)
            self.random_streams.merge(other.random_streams)
            self.modes.since = max(self.modes.since, other.modes.since)
            self.updates.merge(other.updates)
            other.session.close()
            self.session.weights.detector.inherit(other.session.weights.detector)
            self.guide(other.session)
            for model in other.models:
                self.adopt(model)
            self._absorbed += other._absorbed
        for each in self._absorbed:
            each.now, each.steady = self, None
        # With the books of all: gradients of one may be on its device, and weights that others may need yet.
        for other in others:
            if other.updates.on_host:
                self.updates.leave_device(f"Weights of {other.name} are, and a loss is computed with them and others.")

    def backward(self, loss: Loss) -> None:
        if self.modes.since:
            refuse_earlier(self.modes, loss.operations)
        self.updates.backward(loss)
        if self.setup.observer is not IGNORING:
            self.setup.observer.went_backward(self)

    def note_write(self, tensors: Sequence[torch.Tensor]) -> None:
        if tensors:
            settle_sharing(self.buffers)
            self.evaluations.before_weights_change()
            self.buffers.before_weights_change()
        self.updates.weights.note_write(tensors)

    def close(self, optimizers: bool = True, program_ends: bool = False) -> None:
        """End the capture: the models and optimizers are ordinary ones again, with the newest weights and state.

        Args:
            optimizers: Whether the optimizers become ordinary again, too; they may hold parameters of other captured
                models.
            program_ends: Whether nothing uses gradients afterwards, so that no lost ones are reported.

        Raises:
            SessionError: Something on the device could not be copied; the capture has ended all the same.
        """
        self.buffers.settle_unused()
        lost = [loss for loss in self.updates.pending if not loss.value.operation.done]
        if lost and not program_ends:
            logger.warning(
                "%s was given back before optimizer.step(): the gradients of %d losses that went backward are dropped, "
                "where PyTorch keeps them. Call optimizer.step() or zero_grad() before.",
                self.name,
                len(lost),
            )
        self.updates.discard("its model was given back")
        try:
            self.session.close()
        finally:
            for optimizer in self.updates.optimizers if optimizers else ():
                release_optimizer(optimizer)
            for model in self.models:
                model.release()


def has_no_updates(loop: Loop) -> bool:
    """Return whether no model of a loop was trained, by itself or together with others."""
    updates = loop.updates
    return loop.now is loop and not (updates.pending or updates.is_ahead or updates.has_trained)


def is_untrained(loop: Loop) -> bool:
    """Return whether a loop has one model, and nothing was trained, by this model or together with others."""
    return len(loop.models) == 1 and has_no_updates(loop)
