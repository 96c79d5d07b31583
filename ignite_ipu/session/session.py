"""`IPUSession`: one model, its optimizer, its programs, and who holds the newest weights."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from ignite.engine import Engine
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from ignite_ipu.errors import SessionError, logger
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.optimizers.host_link import HostUpdates, Link
from ignite_ipu.optimizers.link import check_parameters
from ignite_ipu.poptorch_types import Executor
from ignite_ipu.program.forward.gradients import problem_of_hooks
from ignite_ipu.program.geometry import BatchGeometry, UnevenCall
from ignite_ipu.program.layout import BatchLayout
from ignite_ipu.program.micro_batches import sample_count
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.host_gradients import accumulate, needs_closure
from ignite_ipu.session.inference import Inference
from ignite_ipu.session.processes import check_same_weights
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.program_kinds import GradientKind
from ignite_ipu.session.programs import Programs, refuse_losses
from ignite_ipu.session.random_streams import continue_stream, read_stream
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.returned_gradients import host_update_cost, refresh_weights, take_gradients
from ignite_ipu.session.summary import summarise
from ignite_ipu.session.torch_compiled import leave_out_compiler
from ignite_ipu.session.training import Trained
from ignite_ipu.torch_names import lists

if TYPE_CHECKING:
    from ignite_ipu.session.placement import MakePlacing, Placing

_ONE_MICRO_BATCH = BatchGeometry(1)
# Weak on both sides: a session holds its model, and lives as long as one of its engines.
_SESSIONS: weakref.WeakKeyDictionary[nn.Module, weakref.ref[IPUSession]] = weakref.WeakKeyDictionary()


def known_session(model: nn.Module) -> Optional[IPUSession]:
    """Return the session of a model, None if it has none."""
    known = _SESSIONS.get(model)
    return None if known is None else known()


def session_of(engine: Engine) -> Optional[IPUSession]:
    """Return the session of an engine, None if it is none of this library's."""
    session = getattr(engine, "ipu", None)
    return session if isinstance(session, IPUSession) else None


class IPUSession:
    """State that the engines over one model share: `IPUSession.of(model)` is the `ipu` of its trainer and evaluators.

    Args:
        model: The user's model, on the CPU.

    Attributes:
        model: The user's model.
        hooks: Callbacks of handlers and of captured models.
        weights: Who holds the newest weights.
        changes: Finds out whether the model is still the one that the programs were compiled from.
        evaluations: The inference programs.
        inference: Makes these, and evaluates with them.
        data: The arithmetic from sample to epoch of the trainer's data, once it is known.
        uneven: The micro-batches of the latest update, if they had several shapes; else None.

    Raises:
        SessionError: Some of the model is on another device than the CPU, or in memory that processes share.
    """

    def __init__(self, model: nn.Module) -> None:
        _check_model(model)
        leave_out_compiler(model)
        self.model = model
        self._programs = programs = Programs(model)
        self.hooks, self.weights, self.changes = programs.hooks, programs.weights, programs.changes
        self.evaluations: List[ModelProgram] = programs.evaluations
        self.inference = Inference(programs)
        self.data: Optional[str] = None
        self.uneven: Optional[UnevenCall] = None
        # How many handles of hooks PyTorch had given out when there were none on gradients.
        self._hooks_handles = -1
        self._looks = 0
        self._warned_of_host_updates = False
        self.serve(model)

    @classmethod
    def of(cls, model: nn.Module) -> IPUSession:
        """Return the session of a model, a new one if it has none.

        Raises:
            TypeError: `model` is no module.
            SessionError: Some of it is on another device than the CPU, or in memory that processes share.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"The model is a {type(model).__qualname__}; a torch.nn.Module is needed.")
        session = known_session(model)
        return cls(model) if session is None else session

    @property
    def trained(self) -> Optional[Trained]:
        """The program that trains and those kept aside, None without a trainer."""
        return self._programs.trained

    @property
    def training(self) -> Optional[ModelProgram]:
        """The training program, None without a trainer."""
        return None if self._programs.trained is None else self._programs.trained.program

    @property
    def link(self) -> Optional[Link]:
        """The tie between the user's optimizer and the device's, None without a trainer."""
        return None if self._programs.trained is None else self._programs.trained.link

    @property
    def active(self) -> Optional[ModelProgram]:
        """The program that was called last."""
        return self._programs.active

    def with_trainer(self) -> Trained:
        """Return `trained`.

        Raises:
            SessionError: It has no trainer.
        """
        trained = self._programs.trained
        if trained is None:
            raise SessionError("This model has no trainer: call create_ipu_trainer first.")
        return trained

    def prepare_training(
        self,
        step: BatchStep,
        conversion: Union[Conversion, HostUpdates],
        resolved: Resolved,
        share_ipus: bool = False,
        place: Optional[MakePlacing] = None,
    ) -> Trained:
        """Define the training of this model; the program is compiled with the first batch.

        Args:
            step: The module that trains.
            conversion: The optimizer; `HostUpdates` where PyTorch makes the updates, with gradients of the program's.
            resolved: The options for training, and the placement on several IPUs.
            share_ipus: Let training and inference take turns on the same IPUs instead of each having their own.
            place: Makes the placement; `Placing` when None.

        Raises:
            PlanError: The pipeline does not suit the model or the options.
            SessionError: The model has a trainer already, or was put into memory that processes share.
            OptimizerError: The optimizer does not hold exactly the model's trainable parameters.
            OptionsError: No IPUs can be had for these options.
            ProcessesError: Several processes would not train one model together.
        """
        self.refuse_second_trainer()
        _check_model(self.model)
        if isinstance(conversion, Conversion):
            check_parameters(conversion.source, step)
        if resolved.geometry.processes > 1:
            check_same_weights(self.model)
        placing: Optional[Placing] = None
        if resolved.pipeline is not None:
            from ignite_ipu.session.placement import Placing

            placing = (place or Placing)(resolved, step, conversion.source)
        programs = self._programs
        trained = Trained(step, conversion, resolved, self.weights, self.hooks, placing, self.changes.refuse_frozen)
        programs.trained = trained
        programs.share_ipus |= share_ipus
        self.inference.training = resolved
        self._include(step)
        return trained

    def replace_training(self, step: BatchStep, resolved: Resolved, keep: bool = False) -> ModelProgram:
        """Train by another program from now on, and return it; see `Trained.replace` and `prepare_training`.

        Raises:
            SessionError: The model has no trainer.
            OptimizerError: Parameters were unfrozen that the optimizer does not hold.
        """
        trained = self.with_trainer()
        trained.replace(step, resolved, keep)
        self._include(step)
        return trained.program

    def stop_training(self) -> None:
        """Give the training program back; the optimizer is an ordinary one again, and another may train the model."""
        programs, trained = self._programs, self.trained
        if trained is None:
            return
        trained.stop()
        self.weights.leave_out(trained.program.step)
        if programs.active is trained.program:
            programs.active = None
        programs.trained = None
        self.hooks.end_guard()

    def let_train(self, trained: Optional[Trained]) -> None:
        """Give the turn to another of the model's trainers, or to one that `prepare_training` makes next.

        Each is of an optimizer of its own and keeps its programs on their IPUs; the weights go from one to the next.
        """
        programs = self._programs
        if programs.trained is trained:
            return
        if programs.trained is not None:
            programs.trained.program.set_aside(keep_ipus=True)
            programs.waiting.append(programs.trained)
        if trained is not None:
            programs.waiting.remove(trained)
            trained.program.go_on()
        programs.trained = trained

    def serve(self, part: nn.Module) -> None:
        """Be the session of a part of the model, too: an evaluator of the part evaluates with the newest weights."""
        _SESSIONS[part] = weakref.ref(self)

    def refuse_second_trainer(self) -> None:
        """Refuse to make another trainer.

        Raises:
            SessionError: The model has one.
        """
        if self.training is not None:
            raise SessionError(
                "This model has a trainer already, and one model can be trained by one program at a time. Use that "
                "trainer, or call trainer.ipu.close() before making another."
            )

    def listen(self, engine: Engine) -> None:
        """Fire this session's events on an engine, too."""
        engine.register_events(*IPUEvents)
        self.hooks.engines.add(engine)

    @property
    def most_shapes(self) -> int:
        """For how many shapes of batches there may be programs that train, and that evaluate."""
        return self._programs.most_shapes

    @most_shapes.setter
    def most_shapes(self, most: int) -> None:
        self._programs.most_shapes = most

    def train(self, x: Any, y: Any, call: Optional[BatchGeometry] = None) -> Tuple[Any, Any, Any, torch.Tensor]:
        """Train on one global batch, by the program for batches of its shapes.

        Args:
            x, y: Inputs and targets for deviceIterations * gradientAccumulation * replicationFactor micro-batches.
            call: The factors of a call that is smaller than the options say.

        Returns:
            Inputs, targets and predictions of the micro-batches whose outputs come back, and the mean of their losses
            as a scalar. The predictions are None when the step returns none.

        Raises:
            SessionError: The model has no trainer, or hooks on gradients.
            LossError: All parameters are frozen.
            BatchError: The batch cannot be cut, is not like the first one, or has one shape too many.
            ConstantAttributeError: A hyper-parameter that is compiled in was changed.
            OptimizerError: Hooks around the optimizer's step cannot be honoured, or the step was replaced.
            LostEditError: A weight was written while its newest value was elsewhere.
        """
        self.uneven = None
        program, leaves = self._program_for(x, y, call)
        hooks, updates = self.with_trainer().hooks, program.resolved.geometry.device_iterations
        if hooks is None:

            def compute() -> Tuple[Any, torch.Tensor]:
                y_pred, loss = self.call_for_gradients(program, leaves, (x, y))
                return y_pred, program.resolved.mean_loss(loss, program.step.maximizes)

            y_pred, loss = self._update_on_host(compute)
            if y_pred is not None:
                x, y = program.resolved.returned((x, y))
            return x, y, y_pred, loss
        hooks.before(updates, self.weights.notice_edits)
        guard = self.hooks.guard
        if guard is None:
            y_pred, loss = self.prepare_call(leaves, (x, y))(*leaves)
        else:
            y_pred, loss = guard.train(leaves, (x, y))
        self._programs.active = program
        self.note_updates(updates)
        program.effects.show_attributes(leaves)
        hooks.after()
        if y_pred is not None:
            x, y = program.resolved.returned((x, y))
        return x, y, y_pred, program.resolved.mean_loss(loss, program.step.maximizes)

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
        trained = self.with_trainer()
        reduction = trained.resolved_for(None).options.Training.accumulation_and_replication_reduction_type.name
        share = 1.0 / len(batches) if reduction == "Mean" else 1.0

        def compute() -> Tuple[List[Any], torch.Tensor]:
            predictions, losses = [], []
            for x, y in batches:
                program, leaves = self._program_for(x, y, _ONE_MICRO_BATCH)
                y_pred, loss = self.call_for_gradients(program, leaves, (x, y), share)
                predictions.append(y_pred)
                losses.append(program.resolved.mean_loss(loss, program.step.maximizes))
            return predictions, torch.stack(losses).mean()

        result: Tuple[List[Any], torch.Tensor] = self._update_on_host(compute)
        self.uneven = UnevenCall(1, len(batches), sum(map(sample_count, batches)))
        return result

    @property
    def updates_on_host(self) -> bool:
        """True if PyTorch makes the updates."""
        return self.trained is not None and self.trained.hooks is None

    def _update_on_host(self, compute: Callable[[], Any]) -> Any:
        """Return the result of `compute`. PyTorch makes one update by its gradients; the loss is its last part."""
        updates, results = self.with_trainer().link.settings, []  # type: HostUpdates, List[Any]
        assert updates.source is not None
        optimizer = updates.source

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            results.append(compute())
            if updates.max_grad_norm is not None:
                parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
                torch.nn.utils.clip_grad_norm_(parameters, updates.max_grad_norm)
            loss: torch.Tensor = results[-1][-1]
            return loss

        with self.weights.stepping() as as_before:
            if needs_closure(optimizer):
                optimizer.step(as_before(closure))
            else:
                as_before(closure)()
                optimizer.step()
        self.with_trainer().link.stepped(1)
        return results[0]

    def call_for_gradients(self, program: ModelProgram, leaves: Sequence[Any], batch: Any, share: float = 1.0) -> Any:
        """Return the result of a program's call, and add its gradients, times a share, to those of the parameters."""
        guard = self.hooks.guard
        if guard is None:
            results = self.prepare_call(leaves, batch)(*leaves)
        else:
            results = guard.train(leaves, batch)
        if not self._warned_of_host_updates:
            self._warned_of_host_updates = True
            logger.warning("Weights are updated on the host, as update='host' asks: %s.", host_update_cost(program))
        gradients = take_gradients(program, self.weights)
        if share != 1.0:
            lists.mul_(gradients, share)
        assert program.kind.gradients is not None
        accumulate(program.kind.gradients, gradients)
        self._programs.active = program
        program.state.note_call()
        return results

    def compile(self, x: Any, y: Any, call: Optional[BatchGeometry] = None) -> ModelProgram:
        """Compile the program that trains on batches like this one, ahead of the first `train`; returns it.

        It comes to its IPUs with the newest weights, unless its target is an offline one. No update is made.

        Raises:
            Exception: As for `train` with such a batch, except for errors of the device call.
        """
        program, leaves = self._program_for(x, y, call)
        self.prepare_call(leaves, (x, y))
        return program

    def _program_for(self, x: Any, y: Any, call: Optional[BatchGeometry]) -> Tuple[ModelProgram, List[Any]]:
        """Return the program for a global batch, now the current one, and its arguments."""
        trained = self.with_trainer()
        program = trained.program
        self.weights.notice_edits()
        self.changes.follow(program)
        if self._looks != self.weights.looks:
            # A parameter was accessed, which is also how one is frozen.
            self._looks = self.weights.looks
            trained.follow_trainable()
        resolved, layouts = trained.resolved_for(call), program.step.layouts
        if program.resolved is resolved and layouts:
            known = layouts[0].leaves_of((x, y))
            if known is not None:
                return program, known
        layout, leaves = program.step.flattened((x, y), resolved.micro_batches)
        if not trained.serves(resolved, layout):
            program = self._take_turn(resolved, layout)
        program.step.settle(layout)
        return program, leaves

    def _take_turn(self, resolved: Resolved, layout: BatchLayout) -> ModelProgram:
        """Train by the program for batches of a layout from now on, one that was kept or a new one."""
        trained = self.with_trainer()
        self.check_model()
        kept = trained.kept_for(resolved, layout)
        if kept is not None:
            trained.resume(kept)
            self.changes.follow(kept)
        else:
            known = trained.shapes_of(resolved)
            if known:
                self._programs.check_another_shape(known, layout)
            self.replace_training(trained.program.step.again(), resolved, keep=True)
        trained.program.state.set_modes()
        return trained.program

    def prepare_call(self, leaves: Sequence[Any], batch: Any) -> Executor:
        """Bring the training program to its IPUs, with the newest weights and hyper-parameters; returns the executor.

        Args:
            leaves: Arguments of the call that will be made.
            batch: The batch they come from.

        Raises:
            SessionError: The model has no trainer, or hooks on gradients are registered.
            LossError: All parameters are frozen.
        """
        programs = self._programs
        trained = programs.trained or self.with_trainer()
        program, link = trained.program, trained.link
        kind, executor = program.kind, program.state.executor
        if self._hooks_handles != RemovableHandle.next_id:
            problem = problem_of_hooks(self.model, of_parameters=kind.updates)
            if problem is not None:
                raise SessionError(problem)
            self._hooks_handles = RemovableHandle.next_id
        programs.shared.take_over()
        if executor is None or not executor.isAttachedToDevice():
            if not program.compiled:
                trained.check_any_trained()
            with programs.loading(program):
                if executor is None:
                    link.push()
                executor = program.load(leaves, batch)
        if isinstance(kind, GradientKind):
            self.weights.look()
            refresh_weights(kind, executor, self.weights)
            return executor
        if link.push(executor):
            self.hooks.fire(IPUEvents.OPTIMIZER_SENT)
        self.weights.to_training()
        return executor

    def note_updates(self, count: int) -> None:
        """Note that the training program made updates."""
        self.weights.trained()
        trained = self._programs.trained or self.with_trainer()
        trained.link.stepped(count)
        trained.program.state.note_call()

    def check_model(self) -> None:
        """See at the start of an epoch whether the programs still fit the model.

        Layers that were frozen or unfrozen make the training program be compiled again. It inspects every parameter, so
        a step does it only after an access to one.

        Raises:
            SessionError: Some were replaced, added or removed.
        """
        self.changes.refuse_replaced()
        if self.trained is not None:
            self.trained.follow_trainable()

    def end_pass(self, always: bool = True) -> None:
        """Check at the end of a pass over data whether the programs still match the model's code.

        Args:
            always: Look however few calls there were since the last time.
        """
        self._programs.end_pass(always)

    def detach(self) -> None:
        """Give the IPUs back until the next call, and keep the compiled programs and the optimizer's state.

        Raises:
            SessionError: Something on the device could not be copied.
        """
        self._programs.detach()

    def release(self) -> None:
        """Bring the newest weights and optimizer state to the host and give the IPUs back, until the next step.

        The model can be used on the host afterwards.

        Raises:
            SessionError: Something on the device could not be copied, so that training is lost. The IPUs are given back
                all the same.
        """
        refuse_losses(self._programs.give_back())

    def release_after_failure(self) -> None:
        """Do as `release` during another exception: failures are logged, not raised."""
        for what, error in self._programs.give_back():
            logger.error("Could not bring %s to the host.", what, exc_info=error)

    def close(self) -> None:
        """Release everything and end the session: the model and its optimizer are ordinary ones again.

        Raises:
            SessionError: Something on the device could not be copied, so that training is lost. The session is closed
                all the same.
        """
        lost = self._programs.give_back()
        for trained in self._programs.trainers:
            try:
                trained.link.detach()
            except Exception as error:
                lost.append(("the optimizer's state", error))
            self.weights.leave_out(trained.program.step)
        self._programs.close()
        for model in [model for model, known in _SESSIONS.items() if known() is self]:
            del _SESSIONS[model]
        refuse_losses(lost)

    def random_state(self) -> Optional[List[int]]:
        """Return the training program's random state, None before it was compiled."""
        return None if self.training is None else read_stream(self.training)

    def set_random_state(self, state: List[int]) -> None:
        """Continue a random stream with the next training step."""
        program = self.with_trainer().program
        if self.hooks.guard is not None:
            self.hooks.guard.forget()
        continue_stream(program, state)

    def _include(self, step: BatchStep) -> None:
        if self.weights.include(step):
            self._programs.shared.look_again()

    def __repr__(self) -> str:
        return summarise(self.model, self._programs, self.data)


def _check_model(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise SessionError(
            f"The model is a {type(model).__qualname__}, which TorchScript runs; PopTorch traces the Python of a "
            "module. Pass the module that it was made from."
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise SessionError(
                f"The model's {name} is on {tensor.device}. PopTorch copies a model to the IPU from the host's memory: "
                "leave it on the CPU (remove .to(device) and .cuda())."
            )
        if not is_lazy(tensor) and plain(tensor).is_shared():  # type: ignore[no-untyped-call]
            raise SessionError(
                f"The model's {name} is in memory that processes share (model.share_memory(), or a model that was sent "
                "to this process), so that all of them train it (Hogwild). An IPU's weights are on the device, where "
                "other processes cannot write into them: each would train a copy of its own. Train in one process, "
                "whose replicas (replication_factor) share the work, or pass copy.deepcopy(model) instead."
            )
