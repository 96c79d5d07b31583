"""`IPUAccelerator`: accelerate's `Accelerator` for IPUs, with which a training loop stays as it was written.

Accelerate's work on the host (trackers, logging, loaders, checkpoint directories, processes) is inherited.
Its handling of models and gradients is replaced: a prepared model records the loop's operations, and the step of its
optimizer runs them as one device step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
from typing import Any, Callable, ContextManager, Dict, Iterable, List, Optional, Tuple, Union

import torch
from torch import nn

from ignite_ipu.program.user_code import found_instead
from ignite_ipu.torch_names.engines import PREPARED

try:
    import accelerate
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.state import GradientState
    from accelerate.utils import DistributedType
except ImportError as error:
    file = found_instead("accelerate") if (error.name or "").split(".")[0] == "accelerate" else None
    if file is not None:
        raise ImportError(
            f"IPUAccelerator needs the package accelerate, but Python finds {file} under that name ({error}). Rename "
            "this file."
        ) from error
    raise ImportError(
        f"IPUAccelerator needs accelerate, which cannot be imported ({error}). Install it with "
        "pip install 'ignite-ipu[accelerate]'."
    ) from error

from ignite_ipu import backend
from ignite_ipu.checkpoints.random_states import read_device_states, write_device_states
from ignite_ipu.deferred.accelerator_refusals import refuse_arguments, refuse_environment, refuse_state
from ignite_ipu.deferred.events import IGNORING, CaptureObserver
from ignite_ipu.deferred.graph.owners import held_tensors, release_optimizer
from ignite_ipu.deferred.model.capturing import capture_model, captured, setup_of
from ignite_ipu.deferred.model.clipping import clip_gradients
from ignite_ipu.deferred.model.loop import Loop
from ignite_ipu.deferred.model.optimizer import capture_optimizer
from ignite_ipu.deferred.model.random_states import random_state_of, set_random_state_of
from ignite_ipu.deferred.settings import captured_options, leaving_device
from ignite_ipu.deferred.tensor.deferred_values import resolved
from ignite_ipu.deferred.tensor.device_gradient import refuse_weights_of_the_host
from ignite_ipu.deferred.tensor.tensor import DeferredTensor
from ignite_ipu.errors import CaptureError, OptionsError, UnsupportedArgumentError
from ignite_ipu.launched import describe_to_torch
from ignite_ipu.program.config import Configuration, IPUConfig
from ignite_ipu.program.torch_compiled import is_compiled
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.data_parallel import wrapped
from ignite_ipu.session.job import job
from ignite_ipu.session.processes import unwrapped
from ignite_ipu.torch_names.modules import all_parameters, has_parameters

_RANDOM_STATES = "ipu_random_states{}.json"
_CLIP_REMEDY = "use accelerator.clip_grad_norm_(model.parameters(), ...), or IPUAccelerator(max_grad_norm=...)"
# Effect of `optimizer.zero_grad()`: before version 0.28 of accelerate gradients become zero.
_SETS_TO_NONE = tuple(map(int, accelerate.__version__.split(".")[:2])) >= (0, 28)


class IPUAccelerator(accelerate.Accelerator):  # type: ignore[misc]
    """`accelerate.Accelerator` whose prepared models train and evaluate on IPUs.

    A call of a prepared model returns deferred tensors; `backward(loss)` and `optimizer.step()` make one device step of
    everything the loss was computed from. With gradients off the call runs at once, with the newest weights; in
    evaluation mode it does, too, until a loss of such a call goes backward. With `IGNITE_IPU_BACKEND=native` it is
    accelerate's own `Accelerator`.

    Args:
        *args: As for `accelerate.Accelerator`.
        **kwargs: As for `accelerate.Accelerator`; `gradient_accumulation_steps` micro-batches are one device call, and
            `cpu` makes no difference.
        config: Everything else: an `IPUConfig`, a mapping or the path of a file; also for arguments of accelerate's
            that it has, `gradient_accumulation_steps` and `mixed_precision`. `save_state` saves it, too.
        options: `poptorch.Options` for training; deviceIterations and gradientAccumulation stay 1.
        replication_factor: Replicas that share the micro-batches of an update; gradient_accumulation_steps is a
            multiple of it. Batches, schedules and gathered values are the same as without replicas.
        max_grad_norm: Clip gradients to this global norm, as a call of `clip_grad_norm_` in the loop does.
        seed: Of the device's random numbers; seeds the host's torch, too.

    Attributes:
        config: The settings, arguments among them.

    Raises:
        UnsupportedArgumentError: An argument, or a value of accelerate's environment variables, cannot be honoured on
            an IPU.
        CaptureError, OptionsError: The options cannot.
        ValueError: `max_grad_norm` is given in a native run, where the loop has to clip itself.
    """

    _observer = IGNORING

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return accelerate's own in a native run, in which settings of an IPU's program have no effect."""
        if backend.choice() != "native":
            return super().__new__(cls)
        own = inspect.signature(IPUAccelerator.__init__).parameters
        config = IPUConfig.of(**{name: value for name, value in kwargs.items() if name in own})
        if config.max_grad_norm is not None:
            raise ValueError(
                f"max_grad_norm={config.max_grad_norm!r}: this run is native (IGNITE_IPU_BACKEND=native), where "
                "nothing clips the gradients for the loop. Call accelerator.clip_grad_norm_ in it."
            )
        theirs = {name: value for name, value in kwargs.items() if name not in own}
        return accelerate.Accelerator(**_completed(_named(args, theirs), config))

    def __init__(
        self,
        *args: Any,
        config: Configuration = None,
        options: Optional[Any] = None,
        replication_factor: Union[int, str, None] = None,
        max_grad_norm: Optional[float] = None,
        seed: Optional[int] = None,
        **kwargs: Any,
    ) -> None:
        settings = IPUConfig.of(
            config, options=options, replication_factor=replication_factor, max_grad_norm=max_grad_norm, seed=seed
        )
        arguments = _completed(_named(args, kwargs), settings)
        refuse_arguments(arguments)
        refuse_environment(arguments)
        describe_to_torch()
        # The host's part of the work is that of processes on CPUs.
        arguments["cpu"] = True
        super().__init__(**arguments)
        # accelerate 0.20 has none before init_trackers(), and log() and end_training() look at them.
        self.trackers: List[Any] = getattr(self, "trackers", [])
        refuse_state(self)
        if self.num_processes > 1:
            job()  # every process is here, with its device
        said: Dict[str, Any] = {"mixed_precision": str(self.mixed_precision)}
        if self.gradient_accumulation_steps > 1:
            said["gradient_accumulation_steps"] = self.gradient_accumulation_steps
        self.config = dataclasses.replace(settings, **said)
        replicas = captured_options(self.config).replication_factor
        for handler in arguments.get("kwargs_handlers") or ():
            hook = str(getattr(handler, "comm_hook", "no"))  # nothing is sent in one process without replicas
            if hook != "no" and replicas * self.num_processes > 1:
                raise UnsupportedArgumentError(
                    f"kwargs_handlers: {type(handler).__name__}(comm_hook={hook!r}) compresses gradients between "
                    f"processes, and between {replicas * self.num_processes} replicas IPUs add them up as they are. "
                    "Leave comm_hook out."
                )

    @property
    def multi_device(self) -> bool:
        """True if several processes train together, as those of several GPUs do."""
        several = self.use_distributed and self.distributed_type == DistributedType.MULTI_CPU
        return several or bool(super().multi_device)

    def prepare_model(
        self, model: nn.Module, device_placement: Optional[bool] = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Capture the model's calls; it is the same object, and its weights are the newest when read.

        A model in `torch.compile` comes back in its wrapper, as from accelerate; calls go to the model within, without
        the compiler. A module without weights, such as a loss, stays an ordinary one. Its operations on a model's
        results are captured.

        Raises:
            ProcessesError: The model is in `DataParallel`.
            SessionError: Another engine trains the model, or some of it is not on the CPU.
        """
        if self.num_processes > 1 and getattr(model, PREPARED, False):
            return model
        inner = unwrapped(model)
        wrapper = self._wrapper(model if is_compiled(model) else inner) if not evaluation_mode else None
        if has_parameters(inner):
            capture_model(inner, *self._settings())
        prepared: nn.Module = super().prepare_model(
            model if is_compiled(model) else inner,
            device_placement=device_placement,
            evaluation_mode=evaluation_mode or self.num_processes > 1,
        )
        return prepared if wrapper is None else wrapper

    def _wrapper(self, model: nn.Module) -> Optional[nn.Module]:
        """Return a model that several processes train in `DistributedDataParallel`, as accelerate does."""
        if self.num_processes == 1 or not any(parameter.requires_grad for parameter in all_parameters(model)):
            return None
        kwargs = {} if self.ddp_handler is None else self.ddp_handler.to_kwargs()
        return wrapped(nn.parallel.DistributedDataParallel, model, **kwargs)

    def prepare_data_loader(self, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepare a loader of micro-batches as accelerate does.

        Raises:
            UnsupportedArgumentError: It is PopTorch's, whose batches fill a device call of its own options.
        """
        if isinstance(data_loader, backend.poptorch().DataLoader):
            raise UnsupportedArgumentError(
                "A poptorch.DataLoader joins micro-batches for a device call, which the captured step does itself. "
                "Prepare a torch.utils.data.DataLoader."
            )
        return super().prepare_data_loader(data_loader, *args, **kwargs)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: Optional[bool] = None) -> Any:
        """Wrap the optimizer as accelerate does unless it is wrapped, and let its steps run captured updates."""
        if isinstance(optimizer, AcceleratedOptimizer):
            # Attributes that prepare() sets on its results.
            setattr(optimizer, PREPARED, True)
        prepared = super().prepare_optimizer(optimizer, device_placement=device_placement)
        prepared.__class__ = _PreparedOptimizer
        capture_optimizer(_wrapped(prepared), setup=setup_of(*self._settings()))
        return prepared

    def _settings(self) -> Tuple[IPUConfig, Callable[[], Optional[str]], str, CaptureObserver]:
        """Return the settings of captured models, the arguments of `setup_of`."""
        # Optimizers keep them, and keep no accelerator by them, which has their models.
        postponed = functools.partial(_postponed, self.gradient_state)
        return leaving_device(self.config), postponed, _CLIP_REMEDY, self._observer

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Let a loss go backward, divided by `gradient_accumulation_steps`.

        Raises:
            UnsupportedArgumentError: A learning rate is given, which optimizers that update during backward take.
            CaptureError: The loss cannot go backward on a device, or the host has computed it from weights alone.
        """
        if "learning_rate" in kwargs:
            raise UnsupportedArgumentError(
                "backward(learning_rate=...) is for optimizers that update weights during backward, which an IPU's "
                "cannot. Leave it out."
            )
        if not isinstance(loss, DeferredTensor):
            refuse_weights_of_the_host(loss, current_line())
        if self.gradient_state.num_steps == 1:
            loss.backward(**kwargs)  # type: ignore[no-untyped-call]
        else:
            super().backward(loss, **kwargs)

    def lomo_backward(self, loss: torch.Tensor, learning_rate: float) -> None:
        """Refuse: LOMO updates weights during the host's backward pass.

        Raises:
            UnsupportedArgumentError: Always.
        """
        raise UnsupportedArgumentError(
            f"lomo_backward(..., {learning_rate}) updates weights during backward, which optimizers of an IPU cannot. "
            "Prepare another optimizer, and call backward(loss) and optimizer.step()."
        )

    def autocast(self, *args: Any, **kwargs: Any) -> Any:
        """Return accelerate's context, in which nothing changes: `mixed_precision` decides for the compiled step.

        Raises:
            UnsupportedArgumentError: A handler is given, which configures autocast for part of a step.
        """
        if any(value is not None for value in (*args, *kwargs.values())):
            raise UnsupportedArgumentError(
                "autocast(...) with a handler chooses number formats for a part of the step, but an IPU's step is "
                "compiled with those of IPUAccelerator(mixed_precision=...). Call autocast() without it; convert "
                "tensors with .float() where half precision cannot hold the model's values."
            )
        return super().autocast()

    def clip_grad_norm_(
        self, parameters: Union[torch.Tensor, Iterable[torch.Tensor]], max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Clip the gradients of the pending update to a global norm, which becomes part of the compiled step.

        Returns:
            The norm of the gradients before clipping, a deferred tensor whose value comes with the update. An update
            whose norm is kept brings its gradients back.

        Raises:
            CaptureError: The norm is no 2-norm, differs from the compiled one, or is not of all trained parameters; or
                gradients still accumulate: accelerate would clip their partial sum.
        """
        if self._steps_on_host:
            found: torch.Tensor = super().clip_grad_norm_(parameters, max_norm, norm_type)
            return found
        if not self.gradient_state.sync_gradients:
            self._leave_device(
                CaptureError(
                    f"clip_grad_norm_ at {current_line()}, but {_postponed(self.gradient_state)}: accelerate clips the "
                    "sum of the gradients so far, in every micro-batch again; a device clips once, before the update. "
                    "Write 'if accelerator.sync_gradients:' before it, as accelerate documents."
                )
            )
            return self.clip_grad_norm_(parameters, max_norm, norm_type)
        if not self._loops():
            raise UnsupportedArgumentError(
                "clip_grad_norm_ was called with parameters of no prepared model: prepare the model first."
            )
        return clip_gradients(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip gradients by value, where they are on the host.

        Raises:
            UnsupportedArgumentError: Weights are updated on the device, which clips by the global norm only.
        """
        if not self._steps_on_host:
            self._leave_device(
                UnsupportedArgumentError(
                    f"clip_grad_value_(..., {clip_value}): gradients are on the device alone, and PopTorch's "
                    "optimizers can clip them by their global norm only. Use clip_grad_norm_, or "
                    "IPUConfig(update='host')."
                )
            )
        super().clip_grad_value_(parameters, clip_value)

    def _leave_device(self, error: Exception) -> None:
        """Have PyTorch make the updates on the host from here on; raise an error if the settings do not allow it."""
        loops = self._loops()
        if not loops:
            raise error
        for loop in loops:
            loop.updates.leave_device(str(error), error)

    @property
    def _steps_on_host(self) -> bool:
        return any(loop.updates.on_host for loop in self._loops())

    def gather(self, tensor: Any) -> Any:
        """Return the values of all processes; a process has those of all its replicas already."""
        with self._reporting():
            return super().gather(resolved(tensor))

    def gather_for_metrics(self, input_data: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the values of every sample exactly once."""
        with self._reporting():
            return super().gather_for_metrics(resolved(input_data), *args, **kwargs)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the values of all processes, reduced; replicas are no processes."""
        # Older versions of accelerate have no scale.
        more = {} if scale == 1.0 else {"scale": scale}
        with self._reporting():
            return super().reduce(resolved(tensor), reduction, **more)

    def pad_across_processes(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the values, padded to the largest of all processes."""
        with self._reporting():
            return super().pad_across_processes(resolved(tensor), *args, **kwargs)

    def wait_for_everyone(self) -> None:
        """Wait until all processes have come here.

        Raises:
            ProcessesError: One of them has ended.
        """
        with self._reporting():
            super().wait_for_everyone()

    def _reporting(self) -> ContextManager[Any]:
        """Return a context that reports which process has ended where communication fails."""
        found: ContextManager[Any] = contextlib.nullcontext() if self.num_processes == 1 else job().reporting()
        return found

    def log(self, values: Any, step: Optional[int] = None, log_kwargs: Optional[Any] = None) -> None:
        """Log values to the trackers, as accelerate does."""
        super().log(resolved(values), step=step, log_kwargs=log_kwargs or {})

    def save_state(self, output_dir: Optional[str] = None, *args: Any, **kwargs: Any) -> str:
        """Save everything as accelerate does, and the random states of the devices and the settings beside it.

        Every process calls this; the first one writes the weights, and each its own random states.
        """
        location: str = super().save_state(output_dir, *args, **kwargs)
        states = list(map(random_state_of, self._trained_together()))
        os.makedirs(location, exist_ok=True)
        write_device_states(os.path.join(location, _states_file(self.process_index)), states)
        if self.is_main_process:
            self.config.save(location, partly=True)
        return location

    def load_state(self, input_dir: Optional[str] = None, *args: Any, **kwargs: Any) -> None:
        """Load a checkpoint of `save_state`, or one of an ordinary accelerator.

        Raises:
            CheckpointError: The file with the random states of the devices holds something else; nothing was loaded.
            ValueError: There is no such folder, or none is named and checkpoints have no automatic names.
        """
        states: List[Any] = []
        if input_dir is None and self.project_configuration.automatic_checkpoint_naming:
            folder = os.path.join(self.project_dir, "checkpoints")
            numbers = [int(name.rsplit("_", 1)[1]) for name in os.listdir(folder) if name.startswith("checkpoint_")]
            input_dir = os.path.join(folder, f"checkpoint_{max(numbers)}")
        if input_dir is not None:
            file = os.path.join(os.path.expanduser(input_dir), _states_file(self.process_index))
            states = read_device_states(file) if os.path.exists(file) else []
        kwargs.setdefault("map_location", "cpu")
        super().load_state(input_dir, *args, **kwargs)
        for parameters, state in zip(self._trained_together(), states):
            set_random_state_of(parameters, state)

    def free_memory(self, *objects: Any) -> Any:
        """Give the IPUs back and forget everything that was prepared; the models are ordinary ones again."""
        for loop in self._loops():
            loop.close()
        for optimizer in self._optimizers:
            release_optimizer(_wrapped(optimizer))
        return super().free_memory(*objects)

    def end_training(self) -> None:
        """End trackers as accelerate does, and give the IPUs back; the models hold the newest weights."""
        try:
            super().end_training()
        finally:
            for loop in self._loops():
                loop.session.release()

    def _trained_together(self) -> List[List[torch.Tensor]]:
        """Return the parameters of each prepared model, and then of each optimizer: those that one program may train.

        Models and optimizers are the same in a resumed run; programs are, from the first updates on.
        """
        models: List[List[torch.Tensor]] = [list(all_parameters(model)) for model in self._models]
        return [*models, *[held_tensors(_wrapped(optimizer)) for optimizer in self._optimizers]]

    def _loops(self) -> List[Loop]:
        return list(dict.fromkeys(loop for loop in map(captured, self._models) if loop is not None))


class _PreparedOptimizer(AcceleratedOptimizer):  # type: ignore[misc]
    """accelerate's wrapper of an optimizer, without the search for mechanisms that an IPU does not have.

    accelerate looks for optional packages and at signatures in every step, which takes longer than capturing the step.
    """

    def step(self, closure: Any = None) -> None:
        """Make the update when gradients are complete."""
        if self.gradient_state.sync_gradients:
            self.optimizer.step(closure)

    def zero_grad(self, set_to_none: Optional[bool] = None) -> None:
        """Drop unused gradients when an update is complete."""
        if self.gradient_state.sync_gradients:
            self.optimizer.zero_grad(_SETS_TO_NONE if set_to_none is None else set_to_none)


def _states_file(process: int) -> str:
    """Return the name of the file with the random states of a process's devices."""
    return _RANDOM_STATES.format(f"_{process}" if process else "")


def _postponed(gradients: GradientState) -> Optional[str]:
    """Return why an update has yet to wait for other micro-batches, None if it has all."""
    if gradients.sync_gradients:
        return None
    return f"this micro-batch is not the last of the {gradients.num_steps} that an update accumulates"


def _wrapped(optimizer: Any) -> torch.optim.Optimizer:
    """Return the user's optimizer, which accelerate's own `prepare_optimizer` may have wrapped several times."""
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    inner: torch.optim.Optimizer = optimizer
    return inner


def _named(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Return the arguments of `accelerate.Accelerator` by their names."""
    signature = inspect.signature(accelerate.Accelerator)
    arguments = dict(signature.bind_partial(*args, **kwargs).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name, {}))
    return arguments


def _completed(arguments: Dict[str, Any], config: IPUConfig) -> Dict[str, Any]:
    """Return accelerate's arguments with the values of a configuration; refuse contradictions."""
    said = config.said()
    for name in ("gradient_accumulation_steps", "mixed_precision"):
        if name in said and str(arguments.setdefault(name, said[name]) or said[name]) != str(said[name]):
            raise OptionsError(
                f"{name} is {said[name]!r} in the config but the arguments say {arguments[name]!r}. Set it in one "
                "place only."
            )
        if name in said:
            arguments[name] = said[name]
    return arguments
