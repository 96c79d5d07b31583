"""Programs of captured weight updates, reused as long as the loop's body stays the same."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, FrozenSet, Optional, Sequence, Union

import torch

from ignite_ipu.deferred.compiled.compilations import Compilations
from ignite_ipu.deferred.compiled.memory import refuse_shared_between
from ignite_ipu.deferred.compiled.modes import Modes
from ignite_ipu.deferred.compiled.places import Places
from ignite_ipu.deferred.compiled.program_options import ProgramOptions
from ignite_ipu.deferred.compiled.random_streams import OwnStream, RandomStreams
from ignite_ipu.deferred.compiled.splitting import WHOLE, asked_split, checked_split
from ignite_ipu.deferred.compiled.step import CapturedStep
from ignite_ipu.deferred.compiled.update import CompiledUpdate, Needed
from ignite_ipu.deferred.compiled.update_modes import UpdateModes
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.step_graph import MicroBatch, StepGraphs
from ignite_ipu.errors import CaptureError, out_of_memory
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.optimizers.host_link import HostUpdates, Link
from ignite_ipu.program.config import IPUConfig
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.anchored_gradients import AnchoredGradients
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.session import IPUSession
from ignite_ipu.session.training import Trained

_MOST_PROGRAMS = 8


class TrainingPrograms(abc.ABC):
    """Programs that compute losses and gradients of one model, compiled once for each body of the loop.

    Attributes:
        optimizer: The optimizer that makes the updates, None before it is known and for updates on the host.
        own: Ids of the parameters that are trained, where the others are another optimizer's; None for all.
        compiled: The update that the current program was compiled for, None before one and after a failure.
        compilations: Counts the programs that were compiled.
        stream: The random state that they go on from.
        trained: The session's trainer for these programs; None before the optimizer has been converted.
    """

    def __init__(
        self, session: IPUSession, config: IPUConfig, modes: Modes, places: Places, streams: RandomStreams
    ) -> None:
        self.session, self.config, self.modes = session, config, modes
        self.optimizer: Optional[torch.optim.Optimizer] = None
        self.own: Optional[FrozenSet[int]] = None
        self.compilations = Compilations()
        self._options = ProgramOptions(config, places)
        self._update_modes = UpdateModes(modes)
        self._graphs = StepGraphs()
        self.compiled: Optional[CompiledUpdate] = None
        # The program of the last update, also if it was compiled for another optimizer.
        self._last: Optional[CompiledUpdate] = None
        self.trained: Optional[Trained] = None
        self.stream = OwnStream(self, streams)

    @property
    def one_after_another(self) -> bool:
        """True if stages run one after another that are to be pipelined."""
        return False

    @property
    def _differentiates(self) -> bool:
        """True if programs bring back the gradients of inputs that are no weights."""
        return False

    @abc.abstractmethod
    def _conversion(self) -> Union[Conversion, HostUpdates]:
        """Return the converted optimizer, or the updates on the host, for the programs."""

    @abc.abstractmethod
    def _anchored(self) -> AnchoredGradients:
        """Return the gradients that a program brings back which will be compiled."""

    @abc.abstractmethod
    def _brings_gradients(self) -> bool:
        """Return whether a program that will be compiled brings gradients back."""

    def _processes(self, modes: ModesThen) -> int:
        """Return the number of processes over which programs average gradients."""
        return 1

    @property
    def prepared(self) -> bool:
        """True once the optimizer has been converted, after which its constants and the clipping are settled."""
        return self.trained is not None

    @property
    def link(self) -> Optional[Link]:
        """Tie between the user's optimizer and the device's, None before the optimizer has been converted."""
        return None if self.trained is None else self.trained.link

    def forget_program(self) -> None:
        """Convert the optimizer again before the next update; until then it is an ordinary one, with its state."""
        if self.trained is not None:
            self.session.hooks.check_shown()  # an update that is taken back for it has forgotten the program
        if self.trained is not None:
            self.session.weights.notice_edits()  # which nothing shows later
            self.stream.keep()
            self.session.trainers.take_turn(self.trained)
            self.session.stop_training()
        self.trained, self.compiled = None, None

    def _serving(
        self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen, gradients: bool
    ) -> CompiledUpdate:
        """Return the program for micro-batches, which may have yet to be compiled; it is its turn from now on."""
        compiled = self.compiled
        if compiled is None or not compiled.serves(batches, needed, modes, gradients):
            serving = (each for each in self._aside if _update_of(each).serves(batches, needed, modes, gradients))
            kept = next(serving, None)
            if kept is not None:
                self.session.trainers.required().resume(kept)
                compiled = self.compiled = _update_of(kept)
            else:
                compiled = self._compile(self._wanted(batches, needed, modes), batches[0])
            if len(self._aside) >= _MOST_PROGRAMS:
                self.session.trainers.required().drop_aside(self._aside[0])
        return compiled

    def results(self, compiled: CompiledUpdate, batches: Sequence[MicroBatch]) -> Any:
        """Make the device call of the program whose turn it is; returns its results."""
        assert self.trained is not None  # since there is a program
        self.session.changes.follow(self.trained.program, compares_code=False)
        leaves = compiled.leaves(batches)
        try:
            return self.session.calls.prepare(leaves, leaves[0])(*leaves)
        except BaseException as error:
            self.compiled = None
            explain_failure(self.session, compiled, error)
            raise

    def _wanted(self, batches: Sequence[MicroBatch], needed: Sequence[Needed], modes: ModesThen) -> CompiledUpdate:
        split = asked_split(batches[0].graph, self.config.split_batch, self._last is None)
        count, replicas = len(batches) * split.pieces, self._options.replicas
        if self.compiled is None and count % replicas:
            self._check_shared(count)
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
            self._processes(modes),
            split,
        )

    def _check_shared(self, count: int) -> None:
        """Refuse an update of so many micro-batches that its replicas do not have the same number each."""
        replicas = self._options.replicas
        raise CaptureError(
            f"replicationFactor is {replicas}, but {count} micro-batches went backward before optimizer.step(): "
            "replicas share the micro-batches of an update. Use gradient accumulation over a multiple of "
            f"{replicas} micro-batches, or fewer replicas."
        )

    @property
    def _aside(self) -> Sequence[ModelProgram]:
        """Programs that are not used at the moment."""
        return () if self.trained is None else self.trained.aside

    def _compile(self, wanted: CompiledUpdate, batch: MicroBatch) -> CompiledUpdate:
        """Make the program to use from now on; returns the update that it will be compiled for when it runs."""
        modes = self._update_modes.now(self.own)._replace(calls=wanted.modes.calls)
        if modes != wanted.modes:
            called_at = next(step.line for step in wanted.graph.steps if step.function is None)
            raise CaptureError(
                f"The model was called at {called_at}, and before the update of that call at "
                f"{current_line()} {wanted.modes.difference(modes)}. The device makes both together, and is compiled "
                "with the model as it is now. Change it after optimizer.step(), or before the call."
            )
        narrower = next((each for each in self._aside if _update_of(each).computes_like(wanted)), None)
        if narrower is not None:
            self.session.trainers.required().resume(narrower)
            self.compiled = _update_of(narrower)
        before = self.compiled
        if before is not None:
            wanted = wanted.extended_by(before)
            self.compilations.warn(before, wanted)
        if wanted.split.pieces > 1:
            whole = dataclasses.replace(wanted, count=1, split=WHOLE)
            first = CapturedStep(self.session.model, whole)
            split = checked_split(first, whole.leaves([batch]), wanted.split, wanted.graph, wanted.outputs)
            wanted = dataclasses.replace(wanted, split=split)
        step = CapturedStep(self.session.model, wanted, self.config.half_products, self._differentiates)
        pipeline, make = self._options.places.training(self.one_after_another)
        resolved = self._options.of(wanted, pipeline)
        if not self.prepared:
            refuse_shared_between(self.session.model)
            state = self.stream.read()
            self.trained = self.session.prepare_training(
                step, self._conversion(), resolved, share_ipus=self.config.share_ipus, place=make, of_loop=True
            )
            if state is not None:
                self.session.set_random_state(state)
        else:
            # With other parameters the state of the optimizer is another one.
            like = before is None or before.computes_like(wanted) or before.modes.trained != wanted.modes.trained
            self.session.trainers.replace_program(step, resolved, keep=not like)
        program = self.session.training
        assert program is not None
        program.kind.gradients = self._anchored() if wanted.gradients else None
        self.compiled = wanted
        self.compilations.count += 1
        return wanted


def _update_of(program: ModelProgram) -> CompiledUpdate:
    step = program.step
    assert isinstance(step, CapturedStep)
    return step.update


def explain_failure(session: IPUSession, compiled: CompiledUpdate, error: BaseException) -> None:
    """Raise an error with a remedy in place of one of a device call, if there is a better one."""
    if isinstance(error, Exception) and "number of pipeline stages" in str(error):
        raise CaptureError(
            f"The blocks of the model make a pipeline, which needs more micro-batches than the "
            f"{compiled.micro_batches} of this update: {error} In a captured loop, accumulate "
            "gradients over so many micro-batches before optimizer.step(), or set "
            "IPUConfig(execution='sharded')."
        ) from error
    too_large = out_of_memory(error) if isinstance(error, Exception) else None
    if too_large is not None:
        session.release_after_failure()
        raise too_large from error
