"""Gradients of captured losses for updates that PyTorch makes on the host.

`HostPrograms` belongs to one captured model, the one that runs the calls of a loop, for any number of optimizers:

- `compute(losses)` makes one device call. It gives the recorded operations their values, and returns the gradients. It
  changes no weight and no `parameter.grad`. Values that forward writes into buffers come to the host.
- `Gradients.accumulate()` adds them to `parameter.grad`, as `backward()` does, by autograd where there are hooks.
- `forget_program()` gives the program back; `stream` has the random state, with which another kind of update goes on.

Weights and optimizers stay ordinary. Weights that the loop, or an optimizer on the host, has changed go to the device
with the next call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.compiled.splitting import asked_split
from ignite_ipu.deferred.compiled.training import TrainingPrograms
from ignite_ipu.deferred.compiled.update import CompiledUpdate, Needed, needed_values
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.operations import Operation
from ignite_ipu.deferred.graph.step_graph import Loss, MicroBatch
from ignite_ipu.deferred.tensor.device_gradient import note_returned
from ignite_ipu.deferred.tensor.written_tensors import WAITING, write_known
from ignite_ipu.errors import CaptureError, logger
from ignite_ipu.optimizers.host_link import HostUpdates
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.host_gradients import accumulate
from ignite_ipu.session.returned_gradients import host_update_cost, take_gradients


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The gradients of losses, for each parameter that they depend on, and for tensors of the host.

    Attributes:
        inputs: Tensors that are no weights and require gradients, with the gradients of the losses.
        retained: Whether PyTorch's graph of these is needed once more.
        offsets: Ids of the parameters that a program adds to these.
        written: By `id`, the buffers that the calls have written, if the program began with earlier weights; else None.
    """

    anchored: AnchoredGradients
    values: Sequence[torch.Tensor]
    inputs: Sequence[Tuple[torch.Tensor, torch.Tensor]] = ()
    retained: bool = False
    offsets: FrozenSet[int] = frozenset()
    written: Optional[Mapping[int, torch.Tensor]] = None

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """The parameters, in the order of the values."""
        return self.anchored.parameters

    def accumulate(self) -> None:
        """Add them to those that the parameters have, and go backward from the tensors of the host."""
        accumulate(self.anchored, self.values, self.offsets)
        if self.inputs:
            tensors, gradients = zip(*self.inputs)
            for tensor in tensors:
                note_returned(tensor)
            torch.autograd.backward(tensors, gradients, retain_graph=self.retained)

    def of(self, tensors: Sequence[torch.Tensor]) -> List[Optional[torch.Tensor]]:
        """Return the gradients of weights and tensors of the host, as `torch.autograd.grad` does."""
        by_id: Dict[int, Optional[torch.Tensor]] = {
            id(parameter): value for parameter, value in zip(self.parameters, self.values)
        }
        others = [each for each in tensors if id(each) not in by_id]
        if self.inputs and others:
            sources, factors = zip(*self.inputs)
            found = torch.autograd.grad(sources, others, factors, retain_graph=self.retained, allow_unused=True)
            by_id.update({id(each): value for each, value in zip(others, found)})
        return [by_id.get(id(each)) for each in tensors]


class HostPrograms(TrainingPrograms):
    """The programs of one captured model that bring gradients back.

    Attributes:
        told: Whether the cost of updates on the host was logged.
    """

    told = False

    @property
    def one_after_another(self) -> bool:
        """True, since a call has one micro-batch, unless that is cut."""
        return self.config.split_batch is None

    def expects(self, loss: Loss) -> bool:
        """Return whether the last loss that went backward was such a loss."""
        return self._last is not None and self._last.graph is self._graphs.micro_batch([loss]).graph

    def compute(
        self,
        losses: Sequence[Loss],
        keeps: Optional[Callable[[Operation], bool]] = None,
    ) -> Gradients:
        """Return the gradients of the sum of some losses, and give their operations the values.

        Args:
            keeps: Returns whether gradients may flow through an operation once more; None for no.

        Raises:
            CaptureError: The losses cannot be computed in one device call.
            IPUOutOfMemoryError: The program does not fit.
        """
        batches = self._graphs.micro_batches(losses) if len(losses) > 1 else [self._graphs.micro_batch(losses)]
        needed = needed_values(batches, keeps)
        modes = self._update_modes.of(batches, losses, self.own, self._last)
        as_then = contextlib.nullcontext() if modes is self.modes.now() else self.modes.as_then(modes)
        with as_then:
            compiled, results, gradients = self._called(batches, needed, modes)
        self._last = compiled
        compiled.settle(batches, needed, results if compiled.outputs else (results,), keeps)
        if WAITING:
            write_known()
        return dataclasses.replace(gradients, retained=losses[0].retained) if gradients.inputs else gradients

    def _called(
        self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen
    ) -> Tuple[CompiledUpdate, Any, Gradients]:
        if self.session.trainers.current is not self.trained:
            self.session.trainers.take_turn(self.trained)
        if batches[0].graph.differentiated:
            self._refuse_shared_inputs(batches)
        compiled = self._serving(batches, needed, modes, gradients=True)
        results = self.results(compiled, batches)
        assert self.trained is not None
        program = self.trained.program
        assert program.kind.gradients is not None
        gradients = Gradients(program.kind.gradients, take_gradients(program, self.session.weights))
        if batches[0].graph.differentiated:
            gradients = self._without_offsets(gradients, batches)
        if not self.told:
            self._report_cost()
        return compiled, results, gradients

    @property
    def _differentiates(self) -> bool:
        return True

    def _refuse_shared_inputs(self, batches: Sequence[MicroBatch]) -> None:
        """Refuse gradients of inputs of which the micro-batches of a call would have one each."""
        split = asked_split(batches[0].graph, self.config.split_batch, self._last is None)
        if len(batches) > 1 or split.pieces > 1:
            raise CaptureError(
                f"Gradients of inputs are asked for at {current_line()}, and a device call has several micro-batches. "
                "Leave out split_batch, and call backward() for each batch."
            )

    def _without_offsets(self, gradients: Gradients, batches: Sequence[MicroBatch]) -> Gradients:
        """Return gradients with those of a program's offsets for the inputs that these are added to."""
        positions = batches[0].graph.differentiated
        assert self.trained is not None
        step: Any = self.trained.program.step
        targets = {id(offset): batches[0].inputs[each].tensor for each, offset in zip(positions, step.offsets)}
        pairs = list(zip(gradients.parameters, gradients.values))
        found = [(targets[id(each)], value) for each, value in pairs if id(each) in targets]
        inputs = [(each, value.to(each.dtype)) for each, value in found]
        return dataclasses.replace(gradients, inputs=inputs, offsets=frozenset(targets))

    def _brings_gradients(self) -> bool:
        return True

    def _conversion(self) -> HostUpdates:
        return HostUpdates(None, self.config.host_loss_scaling)

    def _anchored(self) -> AnchoredGradients:
        return AnchoredGradients(own=True)

    def _check_shared(self, count: int) -> None:
        """Log that replicas are left out: each `backward()` is a call of its own, which has `count` micro-batches."""
        logger.warning(
            "replication_factor is %d, but each backward() at %s is a device call of %d micro-batches: it runs on %d "
            "replicas. IPUConfig(split_batch=%d) cuts each batch for all of them.",
            self._options.replicas,
            current_line(),
            count,
            math.gcd(count, self._options.replicas),
            self._options.replicas,
        )

    def _report_cost(self) -> None:
        if self.session.training is None:
            return
        self.told = True
        logger.warning(
            "Weights are updated on the host from %s on, as update='host' asks: %s.",
            current_line(),
            host_update_cost(self.session.training),
        )
