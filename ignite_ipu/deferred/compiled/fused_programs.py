"""Programs of fused weight updates: losses, gradients and the optimizer's update in one device step."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, FrozenSet, Iterator, Optional, Sequence, Tuple

import torch

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.compiled.averaging import Averaging
from ignite_ipu.deferred.compiled.clipping import Clipping
from ignite_ipu.deferred.compiled.modes import Modes
from ignite_ipu.deferred.compiled.places import Places
from ignite_ipu.deferred.compiled.random_streams import RandomStreams
from ignite_ipu.deferred.compiled.repeated_update import RepeatedUpdate
from ignite_ipu.deferred.compiled.replayed_losses import reached_by
from ignite_ipu.deferred.compiled.training import TrainingPrograms
from ignite_ipu.deferred.compiled.update import CompiledUpdate, Needed, needed_values
from ignite_ipu.deferred.compiled.update_gradients import UpdateGradients
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.operations import Operation, keep_inputs
from ignite_ipu.deferred.graph.state import trained_in
from ignite_ipu.deferred.graph.step_graph import Loss, MicroBatch, StepGraph, Tape, describe_change
from ignite_ipu.deferred.tensor.written_tensors import WAITING, write_known
from ignite_ipu.errors import CaptureError, OptimizerError, logger
from ignite_ipu.optimizers.conversion import Conversion, convert_optimizer
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.tensors.raw import requires_grad, set_requires_grad
from ignite_ipu.program.user_code import Line
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.compiled_program import CompiledProgram
from ignite_ipu.session.data_parallel import Reducer
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.modules import all_parameters
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class FusedPrograms(TrainingPrograms):
    """Programs of the updates of one model by one optimizer.

    Attributes:
        averaging: The processes over which gradients are averaged.
        clipping: The norm that gradients are clipped to.
        gradients: The gradients that programs bring back.
        most_micro_batches: Number of the loop's micro-batches in the largest update so far, None before the first.
        repeated: Makes the last update once more; None if that takes more.
        tape: The operations of the last update, until gradients are cleared.
        zeroed: Where the loop made gradients zero instead of None, if it did when it last cleared them.
    """

    def __init__(
        self, session: IPUSession, config: IPUConfig, modes: Modes, places: Places, streams: RandomStreams
    ) -> None:
        super().__init__(session, config, modes, places, streams)
        self.clipping = Clipping(config.max_grad_norm, self)
        self.averaging = Averaging(session.model, modes)
        self.gradients = UpdateGradients(session, self.clipping)
        self.most_micro_batches: Optional[int] = None
        self.zeroed: Optional[Line] = None
        self._inputs_change = False
        self.repeated: Optional[RepeatedUpdate] = None
        self.tape: Optional[Tape] = None
        # The ids of the parameters that the losses of a tape depend on.
        self._reached: Tuple[Sequence[Loss], FrozenSet[int]] = ((), frozenset())
        self._reach: Tuple[Optional[CompiledUpdate], Any, FrozenSet[int]] = (None, None, frozenset())

    def reached(
        self, losses: Optional[Sequence[Loss]] = None, among: Optional[FrozenSet[int]] = None
    ) -> FrozenSet[int]:
        """Return the ids of the parameters that have gradients of losses; of those of the last update, without any.

        Of losses whose operations have lost their operands, they are all that were trained. If `among` is given, others
        than these may be missing.
        """
        tape = self.tape if losses is None else Tape(losses)
        if tape is None:
            return frozenset()
        if losses is not None and any(loss.value.operation.is_spent for loss in losses):
            return _trained_in(tape)
        if self._reached[0] != tape.losses:
            # All updates that one trace of a program makes have the same.
            traced = None if losses is not None or self.trained is None else self.trained.program.state
            if isinstance(traced, CompiledProgram) and traced is self._reach[1] and self._last is self._reach[0]:
                self._reached = list(tape.losses), self._reach[2]
                return self._reach[2]
            trained = _trained_in(tape)
            if among is not None and among.isdisjoint(trained):
                # Frozen before the losses, which may depend on them otherwise.
                return frozenset()
            try:
                with tape.rewound():
                    found = reached_by(tape.losses, [each for each in self.modes.parameters if id(each) in trained])
            except Exception as error:
                if not self.session.weights.held.is_replaced:
                    raise
                # Whatever code of the model raises that was made for its new parts.
                logger.info("Gradients of before weights were replaced are taken to be of all trained ones: %s", error)
                return trained
            self._reached = list(tape.losses), found
            if losses is None:
                self._reach = self._last, traced, found
        return self._reached[1]

    def forget_losses(self) -> None:
        """Let go of the losses of the last update, whose gradients were cleared."""
        self.tape, self._reached = None, ((), frozenset())

    def forget_program(self) -> None:
        super().forget_program()
        self.repeated = None

    def keep_inputs(self, loss: Loss, waits: bool) -> None:
        """Copy inputs of a loss that went backward, if the loop may write into them before the update.

        The update `waits` if others go backward before it, as they may if the last one had several micro-batches.
        """
        # The loop may write into any of them until an update shows that it does not.
        every = self._last is None or self._inputs_change
        if every or waits or self.compiled is None or self.compiled.count > 1:
            keep_inputs(loss.operations, every)

    def change_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let another optimizer make the next updates; the previous one gets its state, and the program is dropped."""
        if self.prepared:
            assert self.optimizer is not None
            logger.warning(
                "The %s is followed by another optimizer, a %s, for which the step is compiled again.",
                type(self.optimizer).__name__,
                type(optimizer).__name__,
            )
        self.forget_program()
        self.clipping.restart()
        self.optimizer = optimizer

    @property
    def repeats(self) -> bool:
        """True if inputs of a loss need no copy: the last update was of one micro-batch, and wrote into none."""
        last = self._last
        return last is not None and last is self.compiled and last.count == 1 and not self._inputs_change

    def run(self, losses: Sequence[Loss], keeps: Optional[Callable[[Operation], bool]] = None) -> None:
        """Make one weight update from the losses that went backward, and resolve the values of their micro-batches.

        `keeps` returns whether gradients may flow through an operation once more, for another optimizer; None for no.
        Raises a `CaptureError` if it cannot be run as one device step, an `IPUOutOfMemoryError` if it does not fit.
        """
        self.repeated = None
        batches = self._graphs.micro_batches(losses) if len(losses) > 1 else [self._graphs.micro_batch(losses)]
        needed = needed_values(batches, keeps)
        last, chain = self._last, batches[0].chain if len(batches) == 1 and self.own is None else None
        modes = None if chain is None or last is None or last.graph is not chain.graph else chain.modes
        if modes is None:
            modes = self._update_modes.of(batches, losses, self.own, last)
            if chain is not None and any([each.signature.modes is modes for each in batches[0].operations]):
                chain.modes = modes
        known = last is not None and last.graph is batches[0].graph and last.modes == modes
        if self.own is None and self.modes.are(modes) and (known or self.modes.is_now(modes)):
            compiled, results = self._call(batches, needed, modes)
        else:
            with self.modes.as_then(modes), self._others_frozen():
                compiled, results = self._call(batches, needed, modes)
        self.tape = Tape(losses)
        first = self._last is None
        self._last = compiled
        parts = batches[0].parts if len(batches) == 1 else sum([batch.parts for batch in batches])
        self.most_micro_batches = max(self.most_micro_batches or 0, parts)
        if first:
            self._inputs_change |= any(item.changed for batch in batches for item in batch.inputs)
        outputs = results if compiled.outputs else (results,)
        assert self.trained is not None
        if self.trained.program.kind.maximizes:
            outputs = (-outputs[0], *outputs[1:])  # the device minimises the negated loss
        if compiled.processes > 1:
            outputs = (outputs[0] * compiled.processes, *outputs[1:])  # and that of a process, divided by their number
        elif chain is not None and not self.trained.program.kind.maximizes:
            self.repeated = RepeatedUpdate.of(self, chain, compiled, [place for place, _, _ in needed])
        compiled.settle(batches, needed, outputs, keeps)
        if WAITING:
            write_known()

    def _call(
        self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen
    ) -> Tuple[CompiledUpdate, Any]:
        """Make the device call; returns the update that it was compiled for, and its results."""
        self.session.trainers.take_turn(self.trained)
        if self.zeroed is not None:
            self._check_zeroed(batches[0].graph, modes)
        gradients, reducers = self.gradients.needed(), self.averaging.reducers(modes) if Reducer.made else ()
        if reducers:
            for reducer in reducers:
                reducer.notify()
            gradients = self.averaging.agree(reducers[0], batches, modes, gradients)
            if gradients:
                self.gradients.want("another process")
        compiled = self._serving(batches, needed, modes, gradients)
        with reducers[0].job.reporting() if reducers else contextlib.nullcontext():
            results = self.results(compiled, batches)
            self.session.calls.note_updates(1)
            self.gradients.follow(self.session.training if compiled.gradients else None)
            if reducers and compiled.gradients:
                self.gradients.read()  # those of all processes, of which some may not look at them
        return compiled, results

    @contextlib.contextmanager
    def _others_frozen(self) -> Iterator[None]:
        """Freeze the parameters that other optimizers train, in the `with` block: PopTorch would update them, too."""
        own = self.own
        if own is None:
            yield
            return
        with DisableTorchFunctionSubclass():
            others = [
                each for each in all_parameters(self.session.model) if requires_grad(each) and id(each) not in own
            ]
            for parameter in others:
                set_requires_grad(parameter, False)
        try:
            yield
        finally:
            with DisableTorchFunctionSubclass():
                for parameter in others:
                    set_requires_grad(parameter, True)

    def expects(self, losses: Sequence[Loss]) -> bool:
        """Return whether the last update was made from such losses, and nothing else."""
        last = self._last
        if last is None or not losses or (last.count > 1 and len(losses) == 1):
            return False
        batches = self._graphs.micro_batches(losses)
        return last.count == len(batches) and last.graph is batches[0].graph

    def resembles(self, losses: Sequence[Loss]) -> bool:
        """Return whether the last update was made from such losses, maybe of other shapes, and nothing else."""
        last = self._last
        if last is None:
            return False
        batches = self._graphs.micro_batches(losses)
        graph = batches[0].graph
        return last.count == len(batches) and last.graph.losses == graph.losses and last.graph.body == graph.body

    def _check_zeroed(self, graph: StepGraph, modes: ModesThen) -> None:
        last = self._last
        if last is None:
            return
        if last.graph.body != graph.body:
            change = f"the body of the loop changed after that ({describe_change(last.graph, graph)})"
            moved = "weights that the new body does not use"
        elif any(before and not now for before, now in zip(last.modes.trained, modes.trained)):
            change, moved = "parameters were frozen after the update before", "the frozen ones"
        else:
            return
        raise CaptureError(
            f"The gradients were made zero, not None, at {self.zeroed}, and {change}. PyTorch would update {moved} "
            "with a gradient of zero, by their momentum and weight decay, while a device leaves them alone. "
            "Call zero_grad(set_to_none=True), with which PyTorch leaves them alone, too."
        )

    def _processes(self, modes: ModesThen) -> int:
        return next((reducer.job.size for reducer in self.averaging.reducers(modes)), 1)

    def _brings_gradients(self) -> bool:
        self.gradients.look_for_readers()
        return self.gradients.wanted

    def _conversion(self) -> Conversion:
        assert self.optimizer is not None
        arguments = {**self.config.of_optimizer(), "max_grad_norm": self.clipping.norm}
        try:
            return convert_optimizer(self.optimizer, **arguments)
        except OptimizerError as error:
            refused = [row.attribute for row in error.receipt or () if row.fate == "refused"]
            if self.clipping.line is None or refused != ["max_grad_norm"]:
                raise
            raise CaptureError(
                f"Clipping at {self.clipping.line} cannot be compiled into the update of "
                f"{type(self.optimizer).__name__}. Use Adam, AdamW or SGD without momentum, or leave the clipping out. "
                f"{ON_THE_HOST} ({error})"
            ) from error

    def _anchored(self) -> AnchoredGradients:
        return self.gradients.anchored()


def _trained_in(tape: Tape) -> FrozenSet[int]:
    """Return the ids of the parameters that were trained when losses were computed."""
    with tape.rewound():
        return frozenset().union(*map(trained_in, tape.losses))
