"""Runs captured weight updates: one compiled program, reused as long as the loop's body stays the same."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Callable, FrozenSet, Iterator, List, Optional, Sequence, Set, Tuple, Union

import torch

from ignite_ipu import backend
from ignite_ipu.deferred.compiled.modes import Modes
from ignite_ipu.deferred.compiled.places import Places, placed_options
from ignite_ipu.deferred.compiled.splitting import WHOLE, asked_split, checked_split
from ignite_ipu.deferred.compiled.step import CapturedStep
from ignite_ipu.deferred.compiled.update import CompiledUpdate, Needed, needed_values
from ignite_ipu.deferred.compiled.update_gradients import UpdateGradients, reached_by
from ignite_ipu.deferred.graph.operations import ModesThen, Operation
from ignite_ipu.deferred.graph.step_graph import (
    Loss,
    MicroBatch,
    StepGraph,
    StepGraphs,
    Tape,
    describe_change,
)
from ignite_ipu.deferred.tensor.written_tensors import WAITING, write_known
from ignite_ipu.errors import CaptureError, OptimizerError, listed, logger, out_of_memory
from ignite_ipu.optimizers.conversion import Conversion, convert_optimizer
from ignite_ipu.optimizers.host_link import HostUpdates, Link
from ignite_ipu.optimizers.kinds import ON_THE_HOST
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.tensors.raw import requires_grad, set_requires_grad
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.data_parallel import Reducer, covering, digest, has_reducers, reducers_within
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession
from ignite_ipu.session.training import Trained
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

_MOST_CHANGES = 3
_MOST_PROGRAMS = 8


class CapturedTraining:
    """The captured weight updates of one model by one optimizer.

    Attributes:
        own: Ids of the parameters that this optimizer trains, where the others are another one's; None for all.
        checked: What the parameters were told by that were found to be all when they were clipped last.
        most_micro_batches: How many of the loop's the largest update so far was made from, None before the first.
        zeroed: Where the loop made gradients zero instead of None, if it did when it last cleared them.
        clipped: Whether the coming update is clipped so far, or one that was made early.
    """

    def __init__(self, session: IPUSession, config: IPUConfig, modes: Modes, places: Places) -> None:
        self.session = session
        self.config = config
        self._places = places
        self.max_grad_norm = config.max_grad_norm
        self.optimizer: Optional[torch.optim.Optimizer] = None
        self.own: Optional[FrozenSet[int]] = None
        self.compilations = 0
        self.checked: Any = None
        self.zeroed: Optional[Line] = None
        self._base = placed_options(config, places)
        self.replicas = int(self._base.replication_factor)
        self._graphs = StepGraphs()
        self._compiled: Optional[CompiledUpdate] = None
        # What made the last update, be it compiled for another optimizer.
        self._last: Optional[CompiledUpdate] = None
        self.most_micro_batches: Optional[int] = None
        self.modes = modes
        self._trained: Optional[Trained] = None
        # Modes, and the same without the parameters of other optimizers.
        self._seen: Tuple[Optional[ModesThen], Optional[ModesThen]] = (None, None)
        self.gradients = UpdateGradients(session)
        self._clips_by_call = self.clipped = False
        # Where the loop clips, and what changes of it were reported.
        self._clips_at: Optional[Line] = None
        self._reported: Set[str] = set()
        self._random_state: Optional[List[int]] = None
        self._inputs_change = False
        # Of the last update; and the ids of the parameters that the losses of a tape depend on.
        self._tape: Optional[Tape] = None
        self._reached: Tuple[Sequence[Loss], FrozenSet[int]] = ((), frozenset())
        self._reach: Tuple[Optional[CompiledUpdate], Any, FrozenSet[int]] = (None, None, frozenset())
        # Of the processes that train the model together, and the modes that they were found for.
        self._averaged: Tuple[Optional[ModesThen], Sequence[Reducer]] = (None, ())

    @property
    def one_after_another(self) -> bool:
        """True if stages run one after another that are to be pipelined."""
        return False

    def reached(self, losses: Optional[Sequence[Loss]] = None) -> FrozenSet[int]:
        """Return the ids of the parameters that have gradients of losses; of those of the last update, without any."""
        tape = self._tape if losses is None else Tape(losses)
        if tape is None:
            return frozenset()
        if self._reached[0] != tape.losses:
            # All updates that one trace of a program makes have the same.
            traced = None if losses is not None or self._trained is None else self._trained.program.traced
            if traced is not None and traced is self._reach[1] and self._last is self._reach[0]:
                self._reached = list(tape.losses), self._reach[2]
                return self._reach[2]
            flags = self.trained_in(tape.losses)
            trained = zip(self.modes.parameters, flags)
            with tape.rewound():
                found = reached_by(tape.losses, [parameter for parameter, then in trained if then])
            self._reached = list(tape.losses), found
            if losses is None:
                self._reach = self._last, traced, found
        return self._reached[1]

    def reaches(self, parameter: torch.Tensor, losses: Optional[Sequence[Loss]] = None) -> bool:
        """Return whether a parameter has a gradient of losses, or of those of the last update."""
        tape = self._tape if losses is None else Tape(losses)
        if tape is None:
            return False
        if self._reached[0] != tape.losses and not requires_grad(parameter):
            # A parameter that was frozen before the losses has none, whatever else they depend on.
            trained = zip(self.modes.parameters, self.trained_in(tape.losses))
            if not any(each is parameter and then for each, then in trained):
                return False
        return id(parameter) in self.reached(losses)

    def forget_losses(self) -> None:
        """Let go of the losses of the last update, whose gradients were cleared."""
        self._tape, self._reached = None, ((), frozenset())

    @property
    def keeps_inputs(self) -> bool:
        """True if the loop may write into what a step reads between `backward()` and the update, as it did before."""
        return self._last is None or self._inputs_change

    @property
    def prepared(self) -> bool:
        """True once the optimizer has been converted, after which its constants and the clipping are settled."""
        return self._trained is not None

    @property
    def link(self) -> Optional[Link]:
        """Tie between the user's optimizer and the device's, None before the optimizer has been converted."""
        return None if self._trained is None else self._trained.link

    @property
    def accumulates(self) -> bool:
        """True if an update may have several micro-batches, as the last one had."""
        return self._compiled is None or self._compiled.count > 1

    def clip(self, max_norm: float, norm_type: float, read_at: Optional[Line]) -> None:
        """Clip the gradients of the coming update, or of one that was made for a value that was `read_at` a line."""
        if norm_type != 2:
            raise CaptureError(
                f"Clipping at {current_line()} by the {norm_type}-norm: an IPU clips by the 2-norm only."
            )
        before = self.clipped_to
        self._clip_to(max_norm if before is None else min(before, max_norm), read_at)
        self._clips_by_call = self.clipped = True
        self._clips_at = current_line()

    @property
    def clipped_to(self) -> Optional[float]:
        """The norm that the gradients of the coming update are clipped to so far."""
        return self.max_grad_norm if self.clipped else None

    def finish_update(self, read_at: Optional[Line]) -> None:
        """Clip no gradients of an update for which that was not asked, which may have been made early."""
        if self._clips_by_call and not self.clipped:
            self._clip_to(None, read_at)
        self.clipped = False

    def _clip_to(self, max_norm: Optional[float], read_at: Optional[Line]) -> None:
        if max_norm == self.max_grad_norm:
            return
        before, now = (
            "not clipped" if norm is None else f"clipped to {norm}" for norm in (self.max_grad_norm, max_norm)
        )
        if read_at is not None:
            raise CaptureError(
                f"The gradients of an update are to be {now} at {current_line()}, but the value read at {read_at} made "
                f"it run before, with gradients that were {before}, as those of the update before were. Read values "
                "after optimizer.step() where clipping changes."
            )
        if self.prepared:
            logger.warning(
                "Gradients are %s from %s on, and were %s: the step is compiled again. On IPUs each compilation takes "
                "minutes: clip in every update, to the same norm.",
                now,
                current_line(),
                before,
            )
            self.forget_program()
        self.max_grad_norm = max_norm

    def random_state(self) -> Optional[List[int]]:
        return self._random_state if self._trained is None else self._trained.program.read_random_state()

    def set_random_state(self, state: List[int]) -> None:
        if self._trained is None:
            self._random_state = state
        else:
            self._trained.program.set_random_state(state)

    def change_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let another optimizer make the coming updates; the one before gets its state, and the program is dropped."""
        if self.prepared:
            assert self.optimizer is not None
            logger.warning(
                "The %s is followed by another optimizer, a %s, for which the step is compiled again.",
                type(self.optimizer).__name__,
                type(optimizer).__name__,
            )
        self.forget_program()
        if self._clips_by_call and not self.clipped:
            self.max_grad_norm, self._clips_by_call = None, False
        self.optimizer = optimizer

    def forget_program(self) -> None:
        """Convert the optimizer again before the next update; until then it is an ordinary one, with its state."""
        if self._trained is not None:
            self._random_state = self.random_state()
            self.session.let_train(self._trained)
            self.session.stop_training()
        self._trained, self._compiled = None, None

    def run(self, losses: Sequence[Loss], keeps: Optional[Callable[[Operation], bool]] = None) -> None:
        """Make one weight update from the losses that went backward, and settle the values of their micro-batches.

        `keeps` tells whether gradients may flow through an operation once more, for another optimizer; None for no. A
        `CaptureError` where it cannot be run as one device step, an `IPUOutOfMemoryError` where it does not fit.
        """
        batches = self._graphs.micro_batches(losses) if len(losses) > 1 else [self._graphs.micro_batch(losses)]
        needed = needed_values(batches, keeps)
        modes = self._modes_of(batches)
        if self.own is None:
            compiled, results = self._call(batches, needed, modes)
        else:
            with self._others_frozen(self.own):
                compiled, results = self._call(batches, needed, modes)
        self._tape = Tape(losses)
        self.session.note_updates(1)
        first = self._last is None
        self._last = compiled
        self.most_micro_batches = max(self.most_micro_batches or 0, sum([batch.parts for batch in batches]))
        self._inputs_change |= first and any(item.changed for batch in batches for item in batch.inputs)
        outputs = results if compiled.outputs else (results,)
        if self.session.with_trainer().program.step.maximizes:
            outputs = (-outputs[0], *outputs[1:])  # the device minimises the negated loss
        if compiled.processes > 1:
            outputs = (outputs[0] * compiled.processes, *outputs[1:])  # and that of a process, divided by their number
        compiled.settle(batches, needed, outputs, keeps)
        if WAITING:
            write_known()

    def _call(
        self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen
    ) -> Tuple[CompiledUpdate, Any]:
        """Make the device call, and return what it was compiled for and what it returns."""
        self.session.let_train(self._trained)
        if self.zeroed is not None:
            self._check_zeroed(batches[0].graph, modes)
        gradients, reducers = self.gradients.needed(), self.reducers(modes)
        if reducers:
            for reducer in reducers:
                reducer.notify()
            gradients = self._agree(reducers[0], batches, modes, gradients)
        compiled = self._serving(batches, needed, modes, gradients)
        results = self._results(compiled, batches)
        self.gradients.follow(self.session.training if compiled.gradients else None)
        if reducers and compiled.gradients:
            self.gradients.read()  # those of all processes, of which some may not look at them
        return compiled, results

    def reducers(self, modes: ModesThen) -> Sequence[Reducer]:
        """Return what averages the gradients of an update over processes; nothing for those of this process alone.

        Raises:
            CaptureError: It averages some of the gradients, and PopTorch those of all or none.
        """
        if not has_reducers():
            return ()
        if modes is not self._averaged[0]:
            trained = [parameter for parameter, trains in zip(self.modes.parameters, modes.trained) if trains]
            found, left = covering(self.session.model, trained)
            if left:
                raise CaptureError(
                    f"The update at {current_line()} is of {listed(left, 2)}, too, which DistributedDataParallel does "
                    "not have: each process would update its own, and PopTorch adds up all gradients of an update. "
                    "Make them parameters of the wrapped model, or let another optimizer have them."
                )
            self._averaged = modes, found
        return self._averaged[1]

    def local_gradients(self) -> Optional[str]:
        """Return why gradients of the pending update would stay those of their process, None if they would not."""
        own = self.own
        for reducer in reducers_within(self.session.model) if has_reducers() else ():
            if reducer.local and (own is None or not own.isdisjoint(reducer.ids)):
                return (
                    f"The update at {current_line()} is of gradients that no process has averaged: the last backward() "
                    "was of a call within no_sync(), or not the first since a call of the model. PyTorch lets each "
                    "process update by its own, and PopTorch adds up those of all. Call the model outside of no_sync() "
                    "for the last backward() of an update."
                )
        return None

    def _agree(self, reducer: Reducer, batches: Sequence[MicroBatch], modes: ModesThen, gradients: bool) -> bool:
        """Return whether a process reads gradients of an update that all processes make.

        Raises:
            CaptureError: They make different ones, or one of them makes its updates on the host.
        """
        graph, count = batches[0].graph, len(batches)
        agreed = reducer.job.agree(digest(graph.description, count, modes.trained), gradients, False)
        if agreed.on_host:
            raise CaptureError(f"Another process makes the update at {current_line()} on the host.")
        if not agreed.same:
            inputs = ", ".join("x".join(map(str, shape)) or "a number" for shape, _ in graph.inputs)
            own = f"{count} micro-batches, {len(graph.steps)} operations, inputs of {inputs}"
            raise CaptureError(
                f"The processes make different updates at {current_line()} ({reducer.job.differing(own)}), and on IPUs "
                "they are one program. Give all processes batches of one shape, and the same calls."
            )
        if agreed.gradients:
            self.gradients.want("another process")
        return agreed.gradients

    def _serving(
        self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen, gradients: bool
    ) -> CompiledUpdate:
        """Return the program for micro-batches, which may have yet to be compiled; it is its turn from now on."""
        compiled = self._compiled
        if compiled is None or not compiled.serves(batches, needed, modes, gradients):
            serving = (each for each in self._aside if _update_of(each).serves(batches, needed, modes, gradients))
            kept = next(serving, None)
            if kept is not None:
                compiled = self._resume(kept)
            else:
                compiled = self._compile(self._wanted(batches, needed, modes), batches[0])
            if len(self._aside) >= _MOST_PROGRAMS:
                self.session.with_trainer().drop_aside(self._aside[0])
        return compiled

    def _results(self, compiled: CompiledUpdate, batches: Sequence[MicroBatch]) -> Any:
        """Make the device call of the program whose turn it is, and return what comes back."""
        program = self.session.training
        if program is not None:
            self.session.changes.follow_trace(program)
        leaves = compiled.leaves(batches)
        try:
            return self.session.prepare_call(leaves, leaves[0])(*leaves)
        except BaseException as error:
            self._compiled = None
            if isinstance(error, Exception) and "number of pipeline stages" in str(error):
                raise CaptureError(
                    f"The blocks of the model make a pipeline, which needs more micro-batches than the "
                    f"{compiled.micro_batches} of this update: {error} In a captured loop, accumulate "
                    "gradients over so many micro-batches before optimizer.step(), or set "
                    "IPUConfig(execution='sharded')."
                ) from error
            too_large = out_of_memory(error) if isinstance(error, Exception) else None
            if too_large is None:
                raise
            self.session.release_after_failure()
            raise too_large from error

    @contextlib.contextmanager
    def _others_frozen(self, own: FrozenSet[int]) -> Iterator[None]:
        """Freeze the parameters that other optimizers train, in the `with` block: PopTorch would update them, too."""
        with DisableTorchFunctionSubclass():
            others = [each for each in self.session.model.parameters() if requires_grad(each) and id(each) not in own]
            for parameter in others:
                set_requires_grad(parameter, False)
        try:
            yield
        finally:
            with DisableTorchFunctionSubclass():
                for parameter in others:
                    set_requires_grad(parameter, True)

    def _own_modes(self, modes: ModesThen) -> ModesThen:
        """Return modes in which parameters of other optimizers are frozen, as they are for this one's programs."""
        if self.own is None:
            return modes
        if modes is not self._seen[0]:
            parameters = self.modes.parameters
            trained = [known and id(each) in self.own for known, each in zip(modes.trained, parameters)]
            self._seen = modes, modes._replace(trained=trained)
        assert self._seen[1] is not None
        return self._seen[1]

    def expects(self, losses: Sequence[Loss]) -> bool:
        """Tell whether the last update was made from such losses, and nothing else."""
        last = self._last
        if last is None or not losses or (last.count > 1 and len(losses) == 1):
            return False
        batches = self._graphs.micro_batches(losses)
        return last.count == len(batches) and last.graph is batches[0].graph

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

    def trained_in(self, losses: Sequence[Loss]) -> Sequence[bool]:
        """Return whether each parameter has a gradient, from losses or else from the last update."""
        last = self.modes.now() if self._last is None else self._last.modes
        called = [operation.signature.modes for loss in losses for operation in loss.operations]
        return next((then for then in called if then is not None and then.of is self.modes), last).trained

    def _modes_of(self, batches: Sequence[MicroBatch]) -> ModesThen:
        first: Optional[Operation] = None
        modes: Optional[ModesThen] = None
        calls = [call for batch in batches for call in batch.operations if call.model is not None]
        if self.own is not None:
            calls.sort(key=self._has_weights_of, reverse=True)
        for call in calls:
            others = call.signature.modes
            if others is None or others is modes:
                continue
            if others.of is not self.modes:
                # A part of a model that was called before it was known to be one.
                return self._own_modes(self.modes.now())
            if self.own is not None:
                own = self._own_modes(others)
                # Whether a model is frozen that another optimizer trains makes no difference to this one's update.
                others = own if modes is None or self._has_weights_of(call) else own._replace(trained=modes.trained)
            if first is None or modes is None:
                first, modes = call, others
            elif others != modes:
                raise CaptureError(
                    f"The model was called at {first.line}, and again for the same update at {call.line}, but in "
                    f"between {modes.difference(others)}. The calls of one update are one program: change the "
                    "model after optimizer.step()."
                )
        return self._own_modes(self.modes.now()) if modes is None else modes

    def _has_weights_of(self, call: Operation) -> bool:
        assert call.model is not None and self.own is not None
        return not self.own.isdisjoint(call.model.parameter_ids())

    def _wanted(self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen) -> CompiledUpdate:
        split = asked_split(batches[0].graph, self.config.split_batch, self._last is None)
        count, replicas = len(batches) * split.pieces, self.replicas
        if self._compiled is None and count % replicas:
            raise CaptureError(
                f"replicationFactor is {replicas}, but {count} micro-batches went backward before optimizer.step(): "
                "replicas share the micro-batches of an update. Use gradient accumulation over a multiple of "
                f"{replicas} micro-batches, or fewer replicas."
            )
        columns = enumerate(zip(*[batch.numbers for batch in batches]))
        variable = {position for position, column in columns if any(number != column[0] for number in column)}
        return CompiledUpdate(
            batches[0].graph,
            len(batches),
            math.gcd(count, replicas),
            tuple(sorted({place for place, _, _ in needed} - {batches[0].graph.loss})),
            batches[0].numbers,
            frozenset(variable),
            modes,
            self._brings_gradients(),
            next((reducer.job.size for reducer in self.reducers(modes)), 1),
            split,
        )

    def _brings_gradients(self) -> bool:
        """Return whether a program that will be compiled brings gradients back."""
        self.gradients.look_for_readers()
        return self.gradients.wanted

    @property
    def _aside(self) -> Sequence[ModelProgram]:
        """Programs that are not used at the moment."""
        return () if self._trained is None else self._trained.aside

    def _resume(self, program: ModelProgram) -> CompiledUpdate:
        """Let an earlier program serve from now on, and return what it was compiled for."""
        self.session.with_trainer().resume(program)
        self._compiled = _update_of(program)
        return self._compiled

    def _compile(self, wanted: CompiledUpdate, batch: MicroBatch) -> CompiledUpdate:
        """Make the program that serves from now on, and return what it will be compiled for when it runs."""
        modes = self._own_modes(self.modes.now())
        if modes != wanted.modes:
            called_at = next(step.line for step in wanted.graph.steps if step.function is None)
            raise CaptureError(
                f"The model was called at {called_at}, and before the update of that call at "
                f"{current_line()} {wanted.modes.difference(modes)}. The device makes both together, and is compiled "
                "with the model as it is now. Change it after optimizer.step(), or before the call."
            )
        narrower = next((each for each in self._aside if _update_of(each).computes_like(wanted)), None)
        if narrower is not None:
            self._resume(narrower)
        before = self._compiled
        if before is not None:
            wanted = wanted.extended_by(before)
            self._report(before, wanted)
        if not wanted.graph.inputs and not wanted.variable:
            raise CaptureError("The training step reads no tensor, so there is nothing to hand to the device.")
        if wanted.split.pieces > 1:
            whole = dataclasses.replace(wanted, count=1, split=WHOLE)
            first = CapturedStep(self.session.model, whole)
            split = checked_split(first, whole.leaves([batch]), wanted.split, wanted.graph, wanted.outputs)
            wanted = dataclasses.replace(wanted, split=split)
        step = CapturedStep(self.session.model, wanted, self.config.half_products)
        options = self._base.clone()
        options.replicationFactor(wanted.replicas)
        options.Training.gradientAccumulation(wanted.micro_batches)
        # Several backward calls add their gradients up in PyTorch; loops that want the mean divide the loss.
        options.Training.accumulationAndReplicationReductionType(backend.poptorch().ReductionType.Sum)
        if not self.prepared:
            updates = self._updates()
            pipeline, make = self._places.training(self.one_after_another)
            self._trained = self.session.prepare_training(
                step,
                updates,
                options,
                pipeline,
                share_ipus=self.config.share_ipus,
                place=make,
                alone=wanted.processes == 1,
            )
            if self._random_state is not None:
                self.session.set_random_state(self._random_state)
        else:
            # With other parameters the state of the optimizer is another one.
            like = before is None or before.computes_like(wanted) or before.modes.trained != wanted.modes.trained
            self.session.replace_training(step, options, keep=not like, alone=wanted.processes == 1)
        program = self.session.training
        assert program is not None
        program.gradients = self._anchored() if wanted.gradients else None
        self._compiled = wanted
        self.compilations += 1
        return wanted

    def _updates(self) -> Union[Conversion, HostUpdates]:
        """Return what makes the updates of the programs."""
        assert self.optimizer is not None
        arguments = {**self.config.of_optimizer(), "max_grad_norm": self.max_grad_norm}
        try:
            return convert_optimizer(self.optimizer, **arguments)
        except OptimizerError as error:
            refused = [row.attribute for row in error.receipt or () if row.fate == "refused"]
            if self._clips_at is None or refused != ["max_grad_norm"]:
                raise
            raise CaptureError(
                f"Clipping at {self._clips_at} cannot be compiled into the update of {type(self.optimizer).__name__}. "
                f"Use Adam, AdamW or SGD without momentum, or leave the clipping out. {ON_THE_HOST} ({error})"
            ) from error

    def _anchored(self) -> AnchoredGradients:
        return self.gradients.anchored()

    def _report(self, before: CompiledUpdate, wanted: CompiledUpdate) -> None:
        if before.graph.key != wanted.graph.key:
            what = describe_change(before.graph, wanted.graph)
        elif before.count != wanted.count:
            what = f"{wanted.count} micro-batches make an update, it was {before.count}"
        elif before.modes != wanted.modes:
            what = before.modes.difference(wanted.modes)
        elif before.gradients != wanted.gradients:
            what = "its gradients are read"
        elif before.variable != wanted.variable:
            changed = [before.numbers[position] for position in sorted(wanted.variable - before.variable)]
            what = f"numbers in it change ({changed}); from now on they are inputs"
        else:
            what = "other values of it are read"
        if what not in self._reported:
            logger.warning(
                "The body of the training loop changed, so it is compiled again: %s. Later ones like it are not "
                "reported.",
                what,
            )
            self._reported.add(what)
        if self.compilations == _MOST_CHANGES:
            logger.warning(
                "This was recompilation number %d. On IPUs each takes minutes: keep the loop's body and the shapes of "
                "its batches the same (drop_last=True leaves out an incomplete last batch).",
                self.compilations,
            )


def _update_of(program: ModelProgram) -> CompiledUpdate:
    step = program.step
    assert isinstance(step, CapturedStep)
    return step.update
