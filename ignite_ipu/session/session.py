"""`IPUSession`: one model, its optimizer, its programs, and who holds the newest weights."""

from __future__ import annotations

import contextlib
import logging
import weakref
from typing import Any, Callable, ContextManager, List, Optional, Sequence, Tuple

import torch
from ignite.engine import Engine
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from ignite_ipu.errors import SessionError
from ignite_ipu.optimizers import Conversion, OptimizerLink, check_parameters
from ignite_ipu.pipeline.placing.request import PipelineRequest
from ignite_ipu.program.forward.gradient_hooks import GradientHooks
from ignite_ipu.program.options import check_ipus
from ignite_ipu.program.step import BatchStep
from ignite_ipu.session.call_guard import CallGuard
from ignite_ipu.session.events import IPUEvents
from ignite_ipu.session.inference import Inference
from ignite_ipu.session.placement import Placing
from ignite_ipu.session.processes import check_same_weights, describe_processes
from ignite_ipu.session.program import Program
from ignite_ipu.session.recompilation import ModelChanges, report_frozen
from ignite_ipu.session.registry import forget, know, known_session
from ignite_ipu.session.release import Lost, give_back, refuse_losses
from ignite_ipu.session.summary import summarise
from ignite_ipu.session.training import Trained
from ignite_ipu.session.weights.model_states import follow_states
from ignite_ipu.session.weights.shared import SharedWeights
from ignite_ipu.session.weights.tracker import Weights

__all__ = ["IPUSession", "SessionError"]

logger = logging.getLogger("ignite_ipu")


class IPUSession:
    """What the engines over one model share: `IPUSession.of(model)` is the `ipu` of its trainer and its evaluators.

    Args:
        model: The user's model, on the CPU.

    Attributes:
        model: The user's model.
        weights: Who holds the newest weights.
        shared: Finds out what sessions of models with some of the same weights have trained.
        changes: Finds out whether the model is still the one that the programs were compiled from.
        evaluations: The inference programs.
        inference: Makes these, and evaluates with them.
        trainers: How many trainers the model has had. With another one, evaluation options may be others, too.
        active: The program that was called last.
        data: The arithmetic from sample to epoch of the trainer's data, once it is known.
        guard: Makes the device calls instead of this session, if there is one: a `Recovery` handler's.
        while_loading: Gives the context in which programs are compiled and brought to their IPUs.
        check_evaluation: Called before each evaluation, to refuse it.
        refuse_frozen: Called with the reason when forward changes Python values in every call, which a program runs
            once; None to warn of what a trace has changed, be it in every call or a cache of the first.
        shares_ipus: Whether training and inference take turns on the same IPUs instead of each having their own.

    Raises:
        SessionError: Some of the model is on another device than the CPU, or in memory that processes share.
    """

    def __init__(self, model: nn.Module) -> None:
        _check_model(model)
        self.model = model
        self.weights = Weights(model, self.fire)
        self.shared = SharedWeights(self.weights)
        self.changes = ModelChanges(model, self.weights, self._compile_again)
        self._gradient_hooks = GradientHooks(model)
        self.trainers = 0
        self.evaluations: List[Program] = []
        self.inference = Inference(self)
        self.active: Optional[Program] = None
        self.guard: Optional[CallGuard] = None
        self.while_loading: Callable[[], ContextManager[Any]] = contextlib.nullcontext
        self.check_evaluation: Callable[[], None] = _anything
        self.refuse_frozen: Optional[Callable[[str], None]] = None
        self.shares_ipus = False
        self.data: Optional[str] = None
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._looks = 0
        self._trained: Optional[Trained] = None
        know(model, self)
        self._states: Optional[weakref.finalize[Any, Weights]] = None
        self.follow_states()

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
            SessionError: The model has a trainer already, or was put into memory that processes share.
            OptimizerError: The optimizer does not hold exactly the model's trainable parameters.
            OptionsError: No IPUs can be had for these options.
            ProcessesError: Several processes would not train one model together.
        """
        self.refuse_second_trainer()
        _check_model(self.model)
        check_parameters(conversion.source, step)
        describe_processes(options)
        check_same_weights(self.model)
        check_ipus(options)
        placing = None if pipeline is None else Placing(pipeline, step, options, True, conversion.source)
        self._trained = Trained(step, conversion, options, self.weights, self.fire, placing)
        self._trained.program.on_trace = self.report_frozen
        self.inference.derive_from(options)
        self.trainers += 1
        self._include(step)

    def replace_training(self, step: BatchStep, options: Any, keep: bool = False) -> None:
        """Train by another program from now on; see `Trained.replace`.

        Raises:
            SessionError: The model has no trainer.
            OptimizerError: Parameters were unfrozen that the optimizer does not hold.
            OptionsError: No IPUs can be had for these options.
        """
        describe_processes(options)
        self._with_trainer().replace(step, options, keep)
        self._include(step)

    def resume_training(self, program: Program) -> None:
        """Train by an earlier program again, which `replace_training` has kept."""
        self._with_trainer().resume(program)

    def keeps(self, program: Program) -> bool:
        """Tell whether a program waits for `resume_training`."""
        return self._trained is not None and program in self._trained.aside

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
        know(part, self)

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
        self.changes.follow(program)
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

    def prepare_call(self, leaves: Sequence[Any], batch: Any) -> Callable[..., Any]:
        """Bring the training program to its IPUs, with the newest weights and hyper-parameters; returns the executor.

        Args:
            leaves: What the program will be called with.
            batch: The batch they come from.

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
        self.shared.take_over()
        executor = program.executor
        if executor is None or not executor.isAttachedToDevice():
            if not program.compiled:
                trained.check_any_trained()
            self.make_room_for(program)
            with self.while_loading():
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
        self.changes.refuse_replaced()

    def follow_states(self) -> None:
        """Know of states that go in and out of the model, from here or, after `close`, again."""
        if self._states is None or not self._states.alive:
            self._states = follow_states(self.model, self.weights)

    def report_frozen(self, program: Program, leaves: Sequence[Any], changed: List[str]) -> None:
        """Say that forward has changed Python values while it was traced: see `refuse_frozen`."""
        report_frozen(program, leaves, changed, self.refuse_frozen)

    def make_room_for(self, wanted: Program) -> None:
        """Give back the IPUs of the other programs if they take turns on them."""
        if self.shares_ipus:
            for program in self._programs():
                if program is not wanted:
                    self.weights.to_host()
                    program.detach()

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
        refuse_losses(self._give_back())

    def release_after_failure(self) -> None:
        """Do as `release` while another exception is on its way: what fails is logged, not raised."""
        for what, error in self._give_back():
            logger.error("Could not bring %s to the host.", what, exc_info=error)

    def _give_back(self) -> List[Lost]:
        """Bring everything to the host and give the IPUs back; returns what could not be brought, and why."""
        if self.weights.withheld is not None:
            logger.warning(
                "The weights and the optimizer's state that come to the host include an update whose optimizer.step() "
                "has not been called: a value that was read after backward() has made it run."
            )
            self.withhold(None)
        return give_back(self.weights, self._programs())

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
        if self._states is not None:
            self._states()
        self.while_loading, self.check_evaluation = contextlib.nullcontext, _anything
        self.evaluations.clear()
        forget(self)
        refuse_losses(lost)

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
            self.shared.look_again()

    def _with_trainer(self) -> Trained:
        if self._trained is None:
            raise SessionError("This model has no trainer: call create_ipu_trainer first.")
        return self._trained

    def _compile_again(self, program: Program) -> None:
        if self._trained is not None and program is self._trained.program:
            self._trained.compile_again()
        else:
            program.destroy()

    def __repr__(self) -> str:
        return summarise(self)


def _anything() -> None:
    pass


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
        if not is_lazy(tensor) and tensor.is_shared():  # type: ignore[no-untyped-call]
            raise SessionError(
                f"The model's {name} is in memory that processes share (model.share_memory(), or a model that was sent "
                "to this process), so that all of them train it (Hogwild). An IPU's weights are on the device, where "
                "other processes cannot write into them: each would train a copy of its own. Train in one process, "
                "whose replicas (replication_factor) share the work, or pass copy.deepcopy(model) instead."
            )
