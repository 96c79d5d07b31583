"""The kinds of programs: inference, updates on the device, and gradients for updates on the host."""

from __future__ import annotations

from typing import Optional

from ignite_ipu import backend
from ignite_ipu.optimizers.host_link import HostLink, Link
from ignite_ipu.optimizers.link import OptimizerLink
from ignite_ipu.poptorch_types import Executor, Options
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import unwrap_tensors
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.twin import TwinExecutor, Twins


class ProgramKind:
    """The way in which PopTorch wraps a module, and the effect of its calls on the weights.

    Attributes:
        link: The tie to the user's optimizer; None where nothing is trained.
        gradients: The gradients that every call brings back, None for none; settled before the first call.
        training: Whether calls compute gradients.
        updates: Whether calls change the weights, so that those of the device are the newest.
        maximizes: Whether the negated loss is minimised.
    """

    training = updates = maximizes = False
    link: Optional[Link] = None
    gradients: Optional[AnchoredGradients] = None

    def wrap(self, step: BatchStep, options: Options) -> Executor:
        """Return PopTorch's executor over a module."""
        raise NotImplementedError

    def again(self) -> ProgramKind:
        """Return the kind of another program, which has the same optimizer."""
        raise NotImplementedError

    def unwrap(self, step: BatchStep) -> None:
        """Undo the effects of `wrap` on the module's tensors, which PopTorch does not undo for a lost executor."""
        unwrap_tensors(step)

    def take_optimizer(self, executor: Executor) -> None:
        """Give an executor another optimizer, because the device's belongs to one executor at a time."""

    def give_optimizer(self, executor: Executor) -> None:
        """Give an executor the device's optimizer again."""


class InferenceKind(ProgramKind):
    """Programs that compute outputs by the newest weights."""

    def wrap(self, step: BatchStep, options: Options) -> Executor:
        return backend.poptorch().inferenceModel(step, options=options)

    def again(self) -> InferenceKind:
        return InferenceKind()


class UpdateKind(ProgramKind):
    """Programs that make weight updates on the device."""

    training = updates = True

    def __init__(self, link: OptimizerLink) -> None:
        self.link: OptimizerLink = link
        self.maximizes = link.conversion.maximizes

    def wrap(self, step: BatchStep, options: Options) -> Executor:
        return backend.poptorch().trainingModel(step, options=options, optimizer=self.link.conversion.optimizer)

    def again(self) -> UpdateKind:
        other = UpdateKind(self.link)
        other.gradients = None if self.gradients is None else self.gradients.again()
        return other

    def take_optimizer(self, executor: Executor) -> None:
        executor.setOptimizer(self.link.stand_in())

    def give_optimizer(self, executor: Executor) -> None:
        executor.setOptimizer(self.link.conversion.optimizer)


class GradientKind(ProgramKind):
    """Programs that bring gradients back for updates by PyTorch, so that the weights of the host are the newest.

    Attributes:
        unchecked: Whether the gradients of the last call may hold values that are not finite.
        checks: Whether the gradients of every call are checked for such values.
        fetching: Whether buffers of the last call are on their way to the host.
    """

    training = True

    def __init__(self, link: HostLink, gradients: Optional[AnchoredGradients] = None) -> None:
        self.link: HostLink = link
        self.gradients: AnchoredGradients = gradients or AnchoredGradients()
        self.unchecked = self.checks = self.fetching = False

    def wrap(self, step: BatchStep, options: Options) -> Executor:
        twins = Twins(step)
        optimizer = self.link.settings.device_optimizer(twins.trained)
        train = backend.poptorch().trainingModel
        return TwinExecutor(twins, lambda: train(step, options=options, optimizer=optimizer))

    def again(self) -> GradientKind:
        return GradientKind(self.link, self.gradients.again())

    def unwrap(self, step: BatchStep) -> None:
        """Do nothing: twins of the tensors were wrapped."""


def kind_of(link: Link) -> ProgramKind:
    """Return the kind of the programs that train with an optimizer."""
    if isinstance(link, HostLink):
        return GradientKind(link)
    assert isinstance(link, OptimizerLink)
    return UpdateKind(link)
