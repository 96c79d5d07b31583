"""`TrainingCalls`: the calls of the programs that train a model."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ignite_ipu.errors import SessionError, logger
from ignite_ipu.optimizers.host_link import HostUpdates
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.forward.gradients import problem_of_hooks
from ignite_ipu.program.geometry import BatchGeometry, UnevenCall
from ignite_ipu.program.layout import BatchLayout
from ignite_ipu.program.micro_batches import sample_count
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.host_gradients import accumulate, needs_closure
from ignite_ipu.session.job import report_ended
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.program_kinds import GradientKind
from ignite_ipu.session.programs import Programs
from ignite_ipu.session.repeated_call import RepeatedCall
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.returned_gradients import host_update_cost, refresh_weights, take_gradients
from ignite_ipu.session.training import Trained
from ignite_ipu.session.weights.edit_detector import HostStep
from ignite_ipu.torch_names import lists

_ONE_MICRO_BATCH = BatchGeometry(1)


class TrainingCalls:
    """Makes the calls of the programs that train a model, each by the program for batches of its shapes.

    Args:
        model: The model.
        programs: Its programs.

    Attributes:
        uneven: The micro-batches of the latest update, if they had several shapes; else None.
    """

    def __init__(self, model: nn.Module, programs: Programs) -> None:
        self._model, self._programs = model, programs
        self._hooks, self._weights, self._changes = programs.hooks, programs.weights, programs.changes
        self.uneven: Optional[UnevenCall] = None
        # How many handles of hooks PyTorch had given out when there were none on gradients.
        self._hooks_handles = -1
        self._looks = 0
        self._warned_of_host_updates = False

    def train(self, x: Any, y: Any, call: Optional[BatchGeometry] = None) -> Tuple[Any, Any, Any, torch.Tensor]:
        """Train on one global batch, by the program for batches of its shapes: `IPUSession.train` has the rules."""
        self.uneven = None
        trained = self._programs.trainers.current or self._programs.trainers.required()
        program, leaves = self._program_for(trained, x, y, call)
        hooks, updates = trained.hooks, program.resolved.geometry.device_iterations
        if hooks is None:

            def compute() -> Tuple[Any, torch.Tensor]:
                y_pred, loss = self._call_for_gradients(program, leaves, (x, y))
                return y_pred, program.resolved.mean_loss(loss, program.kind.maximizes)

            y_pred, loss = self._update_on_host(compute)
            if y_pred is not None:
                x, y = program.resolved.returned((x, y))
            return x, y, y_pred, loss
        hooks.before(updates, self._weights.notice_edits)
        guard = self._hooks.guard
        try:
            if guard is None:
                y_pred, loss = self.prepare(leaves, (x, y))(*leaves)
            else:
                y_pred, loss = guard.train(leaves, (x, y))
        except RuntimeError as error:
            report_ended(error)
            raise
        self._programs.active = program
        self.note_updates(updates)
        if program.effects.computed.places:
            program.effects.show_attributes(leaves)
        hooks.after()
        if y_pred is not None:
            x, y = program.resolved.returned((x, y))
        return x, y, y_pred, program.resolved.mean_loss(loss, program.kind.maximizes)

    def train_one_by_one(self, batches: Sequence[Tuple[Any, Any]]) -> Tuple[List[Any], torch.Tensor]:
        """Train on micro-batches of several shapes, by a program for each shape, whose gradients make one update.

        For updates on the host. An update uses the mean of the micro-batches' gradients, or their sum by the options.

        Args:
            batches: Inputs and targets of each micro-batch.

        Returns:
            The predictions for each, None where the step returns none, and the mean of their losses.

        Raises:
            Exception: As for `train`.
        """
        trained = self._programs.trainers.required()
        reduction = trained.resolved.options.Training.accumulation_and_replication_reduction_type.name
        share = 1.0 / len(batches) if reduction == "Mean" else 1.0

        def compute() -> Tuple[List[Any], torch.Tensor]:
            predictions, losses = [], []
            for x, y in batches:
                program, leaves = self._program_for(trained, x, y, _ONE_MICRO_BATCH)
                y_pred, loss = self._call_for_gradients(program, leaves, (x, y), share)
                predictions.append(y_pred)
                losses.append(program.resolved.mean_loss(loss, program.kind.maximizes))
            return predictions, torch.stack(losses).mean()

        result: Tuple[List[Any], torch.Tensor] = self._update_on_host(compute)
        self.uneven = UnevenCall(1, len(batches), sum(map(sample_count, batches)))
        return result

    def _update_on_host(self, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`. PyTorch makes one update by its gradients; the loss is its last part."""
        updates: HostUpdates = self._programs.trainers.required().link.settings
        results: List[Any] = []
        assert updates.source is not None
        optimizer = updates.source

        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            results.append(compute())
            if updates.max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(held, updates.max_grad_norm)
            loss: torch.Tensor = results[-1][-1]
            return loss

        with HostStep(self._weights.detector, held) as step:
            if needs_closure(optimizer):
                optimizer.step(step.as_before(closure))
            else:
                step.as_before(closure)()
                optimizer.step()
        self._weights.notice_edits()  # while the gradients of the step are there
        self._programs.trainers.required().link.stepped(1)
        return results[0]

    def _call_for_gradients(self, program: ModelProgram, leaves: Sequence[Any], batch: Any, share: float = 1.0) -> Any:
        """Return the result of a program's call, and add its gradients, times a share, to those of the parameters."""
        self._weights.notice_edits()  # of the optimizer, if its step evaluates the loss several times
        guard = self._hooks.guard
        if guard is None:
            results = self.prepare(leaves, batch)(*leaves)
        else:
            results = guard.train(leaves, batch)
        if not self._warned_of_host_updates:
            self._warned_of_host_updates = True
            logger.warning("Weights are updated on the host, as update='host' asks: %s.", host_update_cost(program))
        gradients = take_gradients(program, self._weights)
        if share != 1.0:
            lists.mul_(gradients, share)
        assert program.kind.gradients is not None
        accumulate(program.kind.gradients, gradients)
        self._programs.active = program
        return results

    def compile(self, x: Any, y: Any, call: Optional[BatchGeometry] = None) -> ModelProgram:
        """Compile the program that trains on batches like this one, ahead of the first `train`; returns it.

        It comes to its IPUs with the newest weights, unless its target is an offline one. No update is made.

        Raises:
            Exception: As for `train` with such a batch, except for errors of the device call.
        """
        program, leaves = self._program_for(self._programs.trainers.required(), x, y, call)
        self.prepare(leaves, (x, y), ahead=True)
        return program

    def _program_for(
        self, trained: Trained, x: Any, y: Any, call: Optional[BatchGeometry]
    ) -> Tuple[ModelProgram, List[Any]]:
        """Return the program for a global batch, now the current one, and its arguments."""
        program = trained.program
        self._weights.notice_edits()
        self._changes.follow(program)
        if self._looks != self._weights.detector.looks:
            # A parameter was accessed, which is also how one is frozen.
            self._looks = self._weights.detector.looks
            trained.follow_trainable()
        resolved = trained.resolved if call is None else trained.resolved_for(call)
        decided = program.step.layout.decided
        if program.resolved is resolved and decided is not None:
            known = decided.leaves_of((x, y))
            if known is not None:
                return program, known
        layout, leaves = program.step.layout.flattened((x, y), resolved.micro_batches)
        if not trained.serves(resolved, layout):
            program = self._take_turn(resolved, layout)
        program.step.layout.settle(layout)
        return program, leaves

    def _take_turn(self, resolved: Resolved, layout: BatchLayout) -> ModelProgram:
        """Train by the program for batches of a layout from now on, one that was kept or a new one."""
        trained = self._programs.trainers.required()
        self._programs.check_model()
        kept = trained.kept_for(resolved, layout)
        if kept is not None:
            trained.resume(kept)
            self._changes.follow(kept)
        else:
            known = trained.shapes_of(resolved)
            if known:
                self._programs.check_another_shape(known, layout)
            self._programs.trainers.replace_program(trained.program.step.again(), resolved, keep=True)
        trained.program.state.set_modes()
        return trained.program

    def prepare(self, leaves: Sequence[Any], batch: Any, ahead: bool = False) -> Executor:
        """Bring the training program to its IPUs, with the newest weights and hyper-parameters; returns the executor.

        Args:
            leaves: Arguments of the call that will be made.
            batch: The batch they come from.
            ahead: Whether no call follows for this batch.

        Raises:
            SessionError: The model has no trainer, or hooks on gradients are registered.
            LossError: All parameters are frozen.
        """
        programs = self._programs
        trained = programs.trainers.current or programs.trainers.required()
        program, link = trained.program, trained.link
        kind, executor = program.kind, program.state.executor
        if self._hooks_handles != RemovableHandle.next_id:
            problem = problem_of_hooks(self._model, of_parameters=kind.updates)
            if problem is not None:
                raise SessionError(problem)
            self._hooks_handles = RemovableHandle.next_id
        moves = bool(programs.shared.others)
        if moves:
            programs.shared.take_over()
        if executor is None or not executor.isAttachedToDevice():
            moves = True
            if not program.compiled:
                trained.check_any_trained()
            with programs.loading(program):
                if executor is None and any(each.attribute not in link.conversion.variable for each in link.push()):
                    trained.drop_aside()  # they were compiled with other constants
                executor = program.load(leaves, batch, ahead)
        if isinstance(kind, GradientKind):
            if moves:
                self._weights.notice_edits()  # other models have brought weights that are this one's, too
            refresh_weights(kind, executor, self._weights)
            return executor
        if link.push(executor):
            self._hooks.fire(IPUEvents.OPTIMIZER_SENT)
        copy = self._weights.programs.training
        if copy is not None and copy.stale:
            self._weights.programs.upload(copy)
        return executor

    def repeated(self) -> Optional[RepeatedCall]:
        """Return the call after the last one, None if it takes all of `prepare`."""
        return RepeatedCall.of(self._programs, self._hooks_handles)

    def note_updates(self, count: int) -> None:
        """Note that the training program made updates."""
        self._weights.trained()
        trained = self._programs.trainers.current or self._programs.trainers.required()
        trained.link.stepped(count)
        trained.program.state.calls += 1
