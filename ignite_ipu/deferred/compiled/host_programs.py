"""Gradients of captured losses for updates that PyTorch makes on the host.

`HostPrograms` belongs to one captured model, the one that runs the calls of a loop, for any number of optimizers:

- `compute(losses)` makes one device call. It gives the recorded operations their values, and returns the gradients. It
  changes no weight and no `parameter.grad`. Values that forward writes into buffers come to the host.
- `Gradients.accumulate()` adds them to `parameter.grad`, as `backward()` does, by autograd where there are hooks.
- `forget_program()` gives the program back; `random_state()` and `set_random_state()` move the random stream of the
  device from and to another kind of update.

Weights and optimizers stay ordinary. Weights that the loop, or an optimizer on the host, has changed go to the device
with the next call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Callable, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.compiled.training import TrainingPrograms
from ignite_ipu.deferred.compiled.update import CompiledUpdate, Needed, needed_values
from ignite_ipu.deferred.graph.operations import ModesThen, Operation
from ignite_ipu.deferred.graph.step_graph import Loss, MicroBatch
from ignite_ipu.deferred.tensor.written_tensors import WAITING, write_known
from ignite_ipu.errors import logger
from ignite_ipu.optimizers.host_link import HostUpdates
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.host_gradients import accumulate
from ignite_ipu.session.returned_gradients import host_update_cost, take_gradients


@dataclasses.dataclass(frozen=True)
class Gradients:
    """The gradients of losses, for each parameter that they depend on."""

    anchored: AnchoredGradients
    values: Sequence[torch.Tensor]

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """The parameters, in the order of the values."""
        return self.anchored.parameters

    def accumulate(self) -> None:
        """Add them to those that the parameters have."""
        accumulate(self.anchored, self.values)


class HostPrograms(TrainingPrograms):
    """The programs of one captured model that bring gradients back.

    Attributes:
        reason: Why weights are updated on the host, as words to follow "on the host from here on, ".
    """

    reason = "as update='host' asks"
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
        older: Sequence[Tuple[torch.Tensor, Optional[torch.Tensor]]] = (),
    ) -> Gradients:
        """Return the gradients of the sum of some losses, and give their operations the values.

        Args:
            keeps: Returns whether gradients may flow through an operation once more; None for no.
            older: Tensors of the model, each with the value that it had when the losses were recorded; None for the
                present one. Their values on the host are the same after the call.

        Raises:
            CaptureError: The losses cannot be computed in one device call.
            IPUOutOfMemoryError: The program does not fit.
        """
        batches = self._graphs.micro_batches(losses) if len(losses) > 1 else [self._graphs.micro_batch(losses)]
        needed = needed_values(batches, keeps)
        modes = self._modes_of(batches, losses)
        with self.modes.as_then(modes), self.session.weights.with_others(older) if older else contextlib.nullcontext():
            compiled, results, gradients = self._called(batches, needed, modes)
        self._last = compiled
        compiled.settle(batches, needed, results if compiled.outputs else (results,), keeps)
        if WAITING:
            write_known()
        return gradients

    def _called(
        self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen
    ) -> Tuple[CompiledUpdate, Any, Gradients]:
        self.session.calls.let_train(self.trained)
        compiled = self._serving(batches, needed, modes, gradients=True)
        results = self._results(compiled, batches)
        assert self.trained is not None
        program = self.trained.program
        assert program.kind.gradients is not None
        program.state.note_call()
        gradients = Gradients(program.kind.gradients, take_gradients(program, self.session.weights))
        self._say_what_it_costs()
        return compiled, results, gradients

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
            self.replicas,
            current_line(),
            count,
            math.gcd(count, self.replicas),
            self.replicas,
        )

    def _say_what_it_costs(self) -> None:
        if self.told or self.session.training is None:
            return
        self.told = True
        logger.warning(
            "Weights are updated on the host from %s on, %s: %s.",
            current_line(),
            self.reason,
            host_update_cost(self.session.training),
        )
