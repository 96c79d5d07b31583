"""`IPUSession`: one model, its optimizer, its programs, and who holds the newest weights."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, List, Optional, Tuple, Union

import torch
from ignite.engine import Engine
from torch import nn

from ignite_ipu.errors import SessionError, logger
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.optimizers.host_link import HostUpdates, Link
from ignite_ipu.optimizers.link import check_parameters
from ignite_ipu.optimizers.shared_memory import refuse_shared_memory
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.raw import is_lazy, named_tensors, plain
from ignite_ipu.program.torch_compiled import leave_out_compiler
from ignite_ipu.session.inference import Inference
from ignite_ipu.session.job import check_same_weights
from ignite_ipu.session.program import ModelProgram
from ignite_ipu.session.programs import Programs, refuse_losses
from ignite_ipu.session.random_streams import continue_stream, read_stream
from ignite_ipu.session.resolved import Resolved
from ignite_ipu.session.summary import summarise
from ignite_ipu.session.training import Trained
from ignite_ipu.session.training_calls import TrainingCalls
from ignite_ipu.torch_names.modules import all_named_modules

if TYPE_CHECKING:
    from ignite_ipu.session.placement import MakePlacing, Placing

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
        trainers: How the model is trained, by one optimizer or several.
        evaluations: The inference programs.
        inference: Makes these, and evaluates with them.
        calls: Makes the calls of the training programs.
        data: The arithmetic from sample to epoch of the trainer's data, once it is known.

    Raises:
        SessionError: Some of the model is on another device than the CPU, or in memory that processes share.
    """

    def __init__(self, model: nn.Module) -> None:
        _check_model(model)
        leave_out_compiler(model)
        self.model = model
        self._programs = programs = Programs(model)
        self.hooks, self.weights, self.changes = programs.hooks, programs.weights, programs.changes
        self.trainers = programs.trainers
        self.evaluations: List[ModelProgram] = programs.evaluations
        self.inference = Inference(programs)
        self.calls = TrainingCalls(model, programs)
        self.data: Optional[str] = None
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
        return self.trainers.current

    @property
    def training(self) -> Optional[ModelProgram]:
        """The training program, None without a trainer."""
        return None if self.trainers.current is None else self.trainers.current.program

    @property
    def link(self) -> Optional[Link]:
        """The tie between the user's optimizer and the device's, None without a trainer."""
        return None if self.trainers.current is None else self.trainers.current.link

    @property
    def active(self) -> Optional[ModelProgram]:
        """The program that was called last."""
        return self._programs.active

    def prepare_training(
        self,
        step: BatchStep,
        conversion: Union[Conversion, HostUpdates],
        resolved: Resolved,
        share_ipus: bool = False,
        place: Optional[MakePlacing] = None,
        of_loop: bool = False,
    ) -> Trained:
        """Define the training of this model; the program is compiled with the first batch.

        Args:
            step: The module that trains.
            conversion: The optimizer; `HostUpdates` where PyTorch makes the updates, with gradients of the program's.
            resolved: The options for training, and the placement on several IPUs.
            share_ipus: Let training and inference take turns on the same IPUs instead of each having their own.
            place: Makes the placement; `Placing` when None.
            of_loop: Whether a loop trains, which follows frozen layers itself; evaluators then take one batch per call,
                whatever an update takes.

        Raises:
            PlanError: The pipeline does not suit the model or the options.
            SessionError: The model has a trainer already, or was put into memory that processes share.
            OptimizerError: The optimizer does not hold exactly the model's trainable parameters, or these share memory.
            OptionsError: No IPUs can be had for these options.
            ProcessesError: Several processes would not train one model together.
        """
        self.trainers.refuse_second()
        _check_model(self.model)
        if isinstance(conversion, Conversion):
            check_parameters(conversion.source, step)
            refuse_shared_memory(self.model)
        if resolved.geometry.processes > 1:
            check_same_weights(self.model)
        placing: Optional[Placing] = None
        if resolved.pipeline is not None:
            from ignite_ipu.session.placement import Placing

            placing = (place or Placing)(resolved, step, conversion.source)
        programs = self._programs
        trained = Trained(step, conversion, resolved, self.weights, self.hooks, placing, self.changes.refuse_frozen)
        self.trainers.start(trained)
        programs.share_ipus |= share_ipus
        self.inference.training, self.inference.by_batch = resolved, of_loop
        return trained

    def stop_training(self) -> None:
        """Give the training program back; the optimizer is an ordinary one again, and another may train the model."""
        programs, trained = self._programs, self.trained
        if trained is None:
            return
        trained.stop()
        self.weights.held.leave_out(trained.program.step)
        if programs.active is trained.program:
            programs.active = None
        self.trainers.end()
        self.hooks.end_guard()

    def serve(self, part: nn.Module) -> None:
        """Be the session of a part of the model, too: an evaluator of the part evaluates with the newest weights."""
        _SESSIONS[part] = weakref.ref(self)

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
        return self.calls.train(x, y, call)

    def compile(self, x: Any, y: Any, call: Optional[BatchGeometry] = None) -> ModelProgram:
        """Compile the program that trains on batches like this one, ahead of the first `train`; returns it.

        It comes to its IPUs with the newest weights, unless its target is an offline one. No update is made.

        Raises:
            Exception: As for `train` with such a batch, except for errors of the device call.
        """
        return self.calls.compile(x, y, call)

    def check_model(self) -> None:
        """See at the start of an epoch whether the programs still fit the model.

        Layers that were frozen or unfrozen make the training program be compiled again. It inspects every parameter, so
        a step does it only after an access to one.

        Raises:
            SessionError: Some were replaced, added or removed.
        """
        self._programs.check_model(follow=not self.inference.by_batch)

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
        for trained in self.trainers:
            try:
                trained.link.detach()
            except Exception as error:
                lost.append(("the optimizer's state", error))
            self.weights.held.leave_out(trained.program.step)
        self._programs.close()
        for model in [model for model, known in _SESSIONS.items() if known() is self]:
            del _SESSIONS[model]
        refuse_losses(lost)

    def random_state(self) -> Optional[List[int]]:
        """Return the training program's random state, None before it was compiled."""
        return None if self.training is None else read_stream(self.training)

    def set_random_state(self, state: List[int]) -> None:
        """Continue a random stream with the next training step."""
        program = self.trainers.required().program
        if self.hooks.guard is not None:
            self.hooks.guard.forget()
        continue_stream(program, state)

    def __repr__(self) -> str:
        return summarise(self.model, self._programs, self.data)


def _check_model(model: nn.Module) -> None:
    for name, module in all_named_modules(model):
        if isinstance(module, torch.jit.ScriptModule):
            raise SessionError(
                f"The {f'model has a part {name!r} that' if name else 'model'} is a {type(module).__qualname__}, which "
                "TorchScript runs; PopTorch traces the Python of a module. Pass the module that it was made from."
            )
    for name, tensor in named_tensors(model).items():
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
