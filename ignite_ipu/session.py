"""`IPUSession`: one model, its optimizer, its programs, and who holds the newest weights."""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from typing import Any, Callable, List, Optional, Protocol, Sequence, Tuple

import torch
from ignite.engine import Engine
from torch import nn
from torch.utils.hooks import RemovableHandle

from ignite_ipu.evaluations import Evaluations
from ignite_ipu.events import IPUEvents
from ignite_ipu.filling import FillingCheck
from ignite_ipu.gradient_hooks import GradientHooks
from ignite_ipu.loading import follow_loading
from ignite_ipu.optimizers import Conversion, OptimizerLink, check_parameters
from ignite_ipu.options import check_ipus
from ignite_ipu.pipeline.request import PipelineRequest
from ignite_ipu.placing import Placing
from ignite_ipu.programs import Program
from ignite_ipu.python_state import FROZEN_REMEDY, changes_in_every_call
from ignite_ipu.registrations import REGISTRATIONS
from ignite_ipu.rows import join_rows, row_count, split_rows, take_rows
from ignite_ipu.shared_weights import SharedWeights
from ignite_ipu.step import BatchStep
from ignite_ipu.summary import summarise
from ignite_ipu.trained import Trained
from ignite_ipu.weights import Weights

__all__ = ["CallGuard", "IPUSession", "SessionError"]

logger = logging.getLogger("ignite_ipu")

_PYTHON_CHANGED = (
    "Python values that the program read while it was traced have changed (%s): it is compiled again. On IPUs each "
    "compilation takes minutes: make what changes often an input or a buffer."
)
_BUFFERS_CHANGED = (
    "Buffers of integers or booleans, which are compiled into the program, have changed (%s): it is compiled again. On "
    "IPUs each compilation takes minutes: make what changes often an input or a buffer of floating-point numbers."
)
# Weak on both sides: a session holds its model, and lives as long as one of its engines.
_SESSIONS: weakref.WeakKeyDictionary[nn.Module, weakref.ref[IPUSession]] = weakref.WeakKeyDictionary()


class SessionError(RuntimeError):
    """Engines over one model that contradict each other, or a model that cannot go to an IPU."""


class CallGuard(Protocol):
    """Makes device calls, and makes good the ones that fail."""

    def train(self, leaves: Sequence[Any], batch: Any) -> Any:
        """Return what the training program returns for one batch, after `session.prepare_call(leaves, batch)`."""

    def evaluate(self, program: Program, call: Callable[[], Any]) -> Any:
        """Return what `call` returns, which calls an inference program."""

    def forget(self) -> None:
        """Note that the host has set something that the device will take over, such as a random state."""

    def end(self) -> None:
        """Note that the training, whose calls it makes, has ended."""


class IPUSession:
    """What the engines over one model share: `IPUSession.of(model)` is the `ipu` of its trainer and its evaluators.

    Args:
        model: The user's model, on the CPU.

    Attributes:
        model: The user's model.
        weights: Who holds the newest weights.
        evaluations: The inference programs.
        trainers: How many trainers the model has had. With another one, evaluation options may be others, too.
        active: The program that was called last.
        data: The arithmetic from sample to epoch of the trainer's data, once it is known.
        guard: Makes the device calls instead of this session, if there is one: a `Recovery` handler's.
        filling: Finds out whether filling up a batch changes the predictions for its samples.
        refuse_frozen: Called with the reason when forward changes Python values in every call, which a program runs
            once; None to warn of what a trace has changed, be it in every call or a cache of the first.
        shares_ipus: Whether training and inference take turns on the same IPUs instead of each having their own.

    Raises:
        SessionError: Some of the model is on another device than the CPU.
    """

    def __init__(self, model: nn.Module) -> None:
        _check_model(model)
        self.model = model
        self.weights = Weights(model, self.fire)
        self._shared = SharedWeights(self.weights)
        self._gradient_hooks = GradientHooks(model)
        self.trainers = 0
        self._inference = Evaluations(self.weights, self.fire, self._report_frozen)
        self.evaluations = self._inference.programs
        self.active: Optional[Program] = None
        self.guard: Optional[CallGuard] = None
        self.refuse_frozen: Optional[Callable[[str], None]] = None
        self.shares_ipus = False
        self.data: Optional[str] = None
        self.filling = FillingCheck()
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._looks = 0
        # What had been counted when the model had the tensors of this session.
        self._registrations = REGISTRATIONS.count
        self._trained: Optional[Trained] = None
        _SESSIONS[model] = weakref.ref(self)
        self._leave_loading = follow_loading(model, self.weights)

    @classmethod
    def of(cls, model: nn.Module) -> IPUSession:
        """Return the session of a model, a new one if it has none.

        Raises:
            TypeError: `model` is no module.
            SessionError: Some of it is on another device than the CPU.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"The model is a {type(model).__qualname__}; a torch.nn.Module is needed.")
        known = _SESSIONS.get(model)
        session = None if known is None else known()
        return cls(model) if session is None else session

    @property
    def training(self) -> Optional[Program]:
        """The training program, None without a trainer."""
        return None if self._trained is None else self._trained.program

    @property
    def link(self) -> Optional[OptimizerLink]:
        """The tie between the user's optimizer and the device's, None without a trainer."""
        return None if self._trained is None else self._trained.link

    # -- setting up -----------------------------------------------------------------------------------------------

    def prepare_training(
        self, step: BatchStep, conversion: Conversion, options: Any, pipeline: Optional[PipelineRequest] = None
    ) -> None:
        """Say what training this model means; the program is compiled when the first batch comes.

        Args:
            step: The module that trains.
            conversion: The optimizer.
            options: `poptorch.Options` for training.
            pipeline: What puts the model on several IPUs.

        Raises:
            PlanError: The pipeline does not suit the model or the options.
            SessionError: The model has a trainer already.
            OptimizerError: The optimizer does not hold exactly the model's trainable parameters.
            OptionsError: No IPUs can be had for these options.
        """
        self.refuse_second_trainer()
        check_parameters(conversion.source, step)
        check_ipus(options)
        placing = None if pipeline is None else Placing(pipeline, step, options, True, conversion.source)
        self._trained = Trained(step, conversion, options, self.weights, self.fire, placing)
        self._trained.program.on_trace = self._report_frozen
        self._inference.derive_from(options)
        self.trainers += 1
        self._include(step)

    def replace_training(self, step: BatchStep, options: Any, keep: bool = False) -> None:
        """Train by another program from now on; see `Trained.replace`.

        Raises:
            SessionError: The model has no trainer.
            OptimizerError: Parameters were unfrozen that the optimizer does not hold.
            OptionsError: No IPUs can be had for these options.
        """
        self._with_trainer().replace(step, options, keep)
        self._include(step)

    def resume_training(self, program: Program) -> None:
        """Train by an earlier program again, which `replace_training` has kept."""
        self._with_trainer().resume(program)

    def drop_aside(self, program: Program) -> None:
        """Destroy a program that was kept."""
        self._with_trainer().drop_aside(program)

    def stop_training(self) -> None:
        """Give the training program back; the optimizer is an ordinary one again, and another may train the model."""
        if self._trained is None:
            return
        self._trained.stop()
        self.weights.leave_out(self._trained.program.step)
        if self.active is self._trained.program:
            self.active = None
        self._trained = None
        self._end_guard()

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

    def evaluation_options(
        self,
        options: Optional[Any] = None,
        device_iterations: Optional[int] = None,
        replication_factor: Optional[int] = None,
    ) -> Any:
        """Return the options to evaluate with: the given ones, else ones derived from the newest trainer's.

        They are the same object for the same wish, until another trainer has other options.

        Raises:
            OptionsError: They contradict each other or ask for gradient accumulation.
        """
        return self._inference.options(options, device_iterations, replication_factor)

    def prepare_evaluation(
        self,
        step: BatchStep,
        options: Any,
        pipeline: Optional[PipelineRequest] = None,
        instead_of: Optional[Program] = None,
    ) -> Program:
        """Return the program that evaluates this model so; evaluators that ask for the same share one.

        Args:
            step: The module that evaluates.
            options: `poptorch.Options` for inference.
            pipeline: What puts the model on several IPUs; the trainer's layers are put where they train when None.
            instead_of: What has evaluated for the caller so far, and is destroyed if another program does from now on.

        Raises:
            PlanError: The pipeline does not suit the model or the options.
            OptionsError: No IPUs can be had for these options.
        """
        if not self._leave_loading.alive:
            # An evaluator is used after `close`, which has made the model an ordinary one.
            self._leave_loading = follow_loading(self.model, self.weights)
        if pipeline is None and self.training is not None and self.training.placing is not None:
            pipeline = self.training.placing.inference
        program = self._inference.prepare(step, options, pipeline)
        if instead_of is not None and instead_of is not program:
            self.drop_evaluation(instead_of)
        return program

    def drop_evaluation(self, program: Program) -> None:
        """Destroy an inference program that nobody needs any more."""
        self._inference.drop(program)
        if self.active is program:
            self.active = None

    def listen(self, engine: Engine) -> None:
        """Fire this session's events on an engine, too."""
        engine.register_events(*IPUEvents)
        self._engines.add(engine)

    @property
    def has_engines(self) -> bool:
        """Whether engines have been made over this model."""
        return bool(self._engines)

    def fire(self, event: IPUEvents) -> None:
        """Fire an event on every engine of this session."""
        logger.debug("%s", event.value)
        for engine in list(self._engines):
            # Handlers of the event that is being handled may still ask which one that is.
            last = engine.last_event_name
            engine.fire_event(event)
            engine.last_event_name = last

    # -- running --------------------------------------------------------------------------------------------------

    def train(self, x: Any, y: Any) -> Tuple[Any, Any, Any, torch.Tensor]:
        """Train on one global batch.

        Args:
            x, y: Inputs and targets for deviceIterations * gradientAccumulation * replicationFactor micro-batches.

        Returns:
            Inputs, targets and predictions of the micro-batches whose outputs come back, and the mean of their losses
            as a scalar. The predictions are None when the step returns none.

        Raises:
            SessionError: The model has no trainer, or hooks on gradients.
            LossError: All parameters are frozen.
            BatchError: The batch cannot be cut, or is not like the first one.
            ConstantAttributeError: A hyper-parameter that is compiled in was changed.
            OptimizerError: Hooks around the optimizer's step cannot be honoured, or the step was replaced.
            LostEditError: Somebody wrote into a weight where the newest one was not.
        """
        trained = self._with_trainer()
        program = trained.program
        self.weights.notice_edits()
        self._follow_values(program)
        if self._looks != self.weights.looks:
            # Somebody touched a parameter, which is also how one is frozen.
            self._looks = self.weights.looks
            trained.follow_trainable()
        leaves = program.arguments(x, y)
        updates = program.device_iterations
        trained.hooks.before(updates, self.weights.notice_edits)
        if self.guard is None:
            y_pred, loss = self.prepare_call(leaves, (x, y))(*leaves)
        else:
            y_pred, loss = self.guard.train(leaves, (x, y))
        self.active = program
        self.note_updates(updates)
        trained.hooks.after()
        if y_pred is not None:
            x, y = program.returned_rows((x, y))
        return x, y, y_pred, program.mean_loss(loss)

    def prepare_call(
        self, leaves: Sequence[Any], batch: Any, before_loading: Callable[[], None] = lambda: None
    ) -> Callable[..., Any]:
        """Bring the training program to its IPUs, with the newest weights and hyper-parameters; returns the executor.

        Args:
            leaves: What the program will be called with.
            batch: The batch they come from.
            before_loading: Called before the program is compiled or loaded.

        Raises:
            SessionError: Somebody has registered hooks on gradients.
            LossError: All parameters are frozen.
        """
        trained = self._trained
        assert trained is not None
        program, link = trained.program, trained.link
        if self._gradient_hooks.handles != RemovableHandle.next_id:
            problem = self._gradient_hooks.problem()
            if problem is not None:
                raise SessionError(problem)
        self._shared.take_over()
        executor = program.executor
        if executor is None or not executor.isAttachedToDevice():
            before_loading()
            if not program.compiled:
                trained.check_any_trained()
            self._make_room_for(program)
            if executor is None:
                link.prepare()
            program.load(leaves, batch)
            executor = program.executor
        assert executor is not None
        if link.push(executor):
            self.fire(IPUEvents.OPTIMIZER_SENT)
        self.weights.to_training()
        called: Callable[..., Any] = executor
        return called

    def note_updates(self, count: int) -> None:
        """Note that the training program made updates."""
        assert self._trained is not None
        self.weights.trained()
        self._trained.link.stepped(count)

    def evaluate(self, program: Program, x: Any) -> Any:
        """Return the predictions for a batch of any number of samples, one row each, by the newest weights.

        Raises:
            BatchError: The inputs are not like the first ones.
            RowsError: The batch has to be filled up, and an output has not one row per sample, or is changed by that.
        """
        rows = program.rows_for(row_count(x))
        predictions = []
        for piece, valid in split_rows(x, rows):
            call = functools.partial(self._infer_samples, program, valid, rows)
            predictions.append(self.filling.checked(program, piece, valid, call))
        return join_rows(predictions)

    def _infer_samples(self, program: Program, valid: int, rows: int, piece: Any) -> Any:
        return take_rows(self.infer(program, piece), valid, rows)

    def infer(self, program: Program, *parts: Any) -> Any:
        """Return what an inference program returns for the parts of one batch, by the newest weights.

        Raises:
            BatchError: The inputs are not like the first ones.
        """
        if self.guard is None:
            return self._infer(program, parts)
        return self.guard.evaluate(program, functools.partial(self._infer, program, parts))

    def _infer(self, program: Program, parts: Tuple[Any, ...]) -> Any:
        self._follow_values(program)
        leaves = program.arguments(*parts)
        return self.call_inference(program, leaves, parts[0] if len(parts) == 1 else parts)

    def call_inference(self, program: Program, leaves: Sequence[Any], x: Any) -> Any:
        """Make one call of an inference program by the newest weights; `x` is what the leaves were taken from."""
        self._shared.take_over()
        if not program.ready:
            self._make_room_for(program)
            self.weights.to_host()  # loading uploads the host's
            program.load(leaves, x)
        assert program.executor is not None
        self.active = program
        self.weights.to_inference(program.executor)
        return program.executor(*leaves)

    def follow_buffers(self, program: Program) -> None:
        """Compile a program again if integers in buffers, which are constants of it, have changed."""
        if program.constants is not None:
            self._compile_again(program, program.constants.changed(), _BUFFERS_CHANGED)

    def check_model(self) -> None:
        """See at the start of an epoch whether the programs still fit the model.

        Layers that were frozen or unfrozen make the training program be compiled again. It takes a look at every
        parameter, so it is done in a step only after somebody touched one.

        Raises:
            SessionError: Some were replaced, added or removed.
        """
        self.refuse_replaced()
        if self._trained is not None:
            self._trained.follow_trainable()

    def refuse_replaced(self) -> None:
        """Refuse a model, or a loss that is a module, whose tensors are not those of the session.

        Raises:
            SessionError: Some were replaced, added or removed.
        """
        changed = self.weights.replaced(self.model)
        beside = self.weights.replaced_beside()
        if changed or beside:
            what = f"{', '.join(changed)} of the model" if changed else f"{', '.join(beside)} of the trainer"
            raise SessionError(
                f"{what} was replaced, added or removed since its session began, but the programs and the optimizer "
                "hold the tensors of that time. Change parameters in place (with copy_() under torch.no_grad(), or "
                "load_state_dict), or call trainer.ipu.close() and create the engines again."
            )
        self._registrations = REGISTRATIONS.count

    def withhold(self, refuse: Optional[Callable[[], None]]) -> None:
        """Do not show the newest weights and the optimizer's state from now on.

        Args:
            refuse: Called when somebody asks for them, to raise an error; None to show them again.
        """
        self.weights.withhold(refuse)
        if self.link is not None:
            self.link.withheld = refuse

    # -- giving back ----------------------------------------------------------------------------------------------

    def release(self) -> None:
        """Bring the newest weights and optimizer state to the host and give the IPUs back, until the next step.

        The model can be used natively afterwards.

        Raises:
            SessionError: Something on the device could not be copied, so that training is lost. The IPUs are given back
                all the same.
        """
        _refuse_losses(self._give_back())

    def release_after_failure(self) -> None:
        """Do as `release` while another exception is on its way: what fails is logged, not raised."""
        for what, error in self._give_back():
            logger.error("Could not bring %s to the host.", what, exc_info=error)

    def _give_back(self) -> List[Tuple[str, Exception]]:
        """Bring everything to the host and give the IPUs back; returns what could not be brought, and why."""
        if self.weights.withheld is not None:
            logger.warning(
                "The weights and the optimizer's state that come to the host include an update whose optimizer.step() "
                "has not been called: a value that was read after backward() has made it run."
            )
            self.withhold(None)
        lost: List[Tuple[str, Exception]] = []
        try:
            self.weights.to_host()
        except Exception as error:
            lost.append(("the newest weights", error))
        for program in self._programs():
            try:
                program.destroy()
            except Exception as error:
                name = "training" if program.training else "inference"
                lost.append((f"the state of the {name} program", error))
                with contextlib.suppress(Exception):
                    program.abandon()
                    program.destroy()
        return lost

    def close(self) -> None:
        """Release everything and end the session: the model and its optimizer are ordinary ones again.

        Raises:
            SessionError: Something on the device could not be copied, so that training is lost. The session is closed
                all the same.
        """
        lost = self._give_back()
        if self._trained is not None:
            try:
                self._trained.detach()
            except Exception as error:
                lost.append(("the optimizer's state", error))
            self.weights.leave_out(self._trained.program.step)
        self._trained = self.active = None
        self._end_guard()
        self._leave_loading()
        self.evaluations.clear()
        for model in [model for model, known in _SESSIONS.items() if known() is self]:
            del _SESSIONS[model]
        _refuse_losses(lost)

    def random_state(self) -> Optional[List[int]]:
        """Return the training program's random state, None before it was compiled."""
        return None if self.training is None else self.training.read_random_state()

    def set_random_state(self, state: List[int]) -> None:
        """Continue a random stream with the next training step."""
        program = self._with_trainer().program
        if self.guard is not None:
            self.guard.forget()
        if program.executor is not None and program.executor.isCompiled():
            program.executor.rng_state = list(state)
        else:
            program.random_state = list(state)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _programs(self) -> List[Program]:
        trained = [] if self._trained is None else [self._trained.program, *self._trained.aside]
        return [*trained, *self.evaluations]

    def _end_guard(self) -> None:
        guard, self.guard = self.guard, None
        if guard is not None:
            guard.end()

    def _include(self, step: BatchStep) -> None:
        if self.weights.include(step):
            self._shared.look_again()

    def _with_trainer(self) -> Trained:
        if self._trained is None:
            raise SessionError("This model has no trainer: call create_ipu_trainer first.")
        return self._trained

    def _follow_values(self, program: Program) -> None:
        """Compile again for other Python values and integers in buffers, which are constants of a program."""
        if self._registrations != REGISTRATIONS.count:
            self.refuse_replaced()
        self._compile_again(program, program.changed_values(), _PYTHON_CHANGED)
        self.follow_buffers(program)

    def _compile_again(self, program: Program, changed: Sequence[str], message: str) -> None:
        """Give up what was compiled if something changed."""
        if not changed:
            return
        self.refuse_replaced()
        logger.warning(message, ", ".join(changed))
        if self._trained is not None and program is self._trained.program:
            self._trained.compile_again()
        else:
            program.destroy()

    def _report_frozen(self, program: Program, leaves: Sequence[Any], changed: List[str]) -> None:
        name = type(program.step.model).__qualname__
        if self.refuse_frozen is None:
            logger.warning(
                "The forward of %s changed Python values while it was traced (%s), and a compiled program does not run "
                "it again: what it changes in every call has the values of the first. %s",
                name,
                ", ".join(changed),
                FROZEN_REMEDY,
            )
            return
        # What the trace set up, such as a cache, stays as it is in another call.
        changed = program.step.changed_in_a_call(leaves, program.micro_batches)
        if changed:
            self.refuse_frozen(changes_in_every_call(f"The forward of {name}", changed))

    def _make_room_for(self, wanted: Program) -> None:
        if self.shares_ipus:
            for program in self._programs():
                if program is not wanted:
                    self.weights.to_host()
                    program.detach()

    def __repr__(self) -> str:
        return summarise(self)


def _refuse_losses(lost: Sequence[Tuple[str, Exception]]) -> None:
    """Refuse to go on as if nothing had been lost.

    Raises:
        SessionError: Something was.
    """
    if lost:
        what = ", ".join(f"{what} ({type(error).__name__}: {error})" for what, error in lost)
        raise SessionError(
            f"The IPUs were given back, but could not be asked for {what}: the model and its optimizer have what was "
            "copied to the host before. Load the newest checkpoint; a handlers.Recovery makes copies that fail good."
        ) from lost[0][1]


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
