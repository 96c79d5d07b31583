"""`create_ipu_trainer` and `create_ipu_evaluator`: Ignite's factories for supervised engines, on IPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Union

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Metric
from torch import nn

from ignite_ipu import backend
from ignite_ipu.engines.deterministic_trainer import DeterministicIPUTrainer
from ignite_ipu.engines.engine import IPUEngine
from ignite_ipu.engines.loaders import Loaders
from ignite_ipu.engines.steps import (
    LastCalls,
    PrepareBatch,
    evaluation_step,
    ipu_training_step,
    loss_item,
    predictions_and_targets,
    refuse_to_train_all,
)
from ignite_ipu.engines.trainer import IPUTrainer
from ignite_ipu.errors import OptionsError, UnsupportedArgumentError, did_you_mean
from ignite_ipu.handlers.gradients import Gradients
from ignite_ipu.handlers.weight_sync import WeightSync
from ignite_ipu.optimizers.conversion import Conversion, convert_optimizer
from ignite_ipu.optimizers.host_link import HostUpdates
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.config import OF_PIPELINES, Configuration, IPUConfig
from ignite_ipu.program.options import with_replicas
from ignite_ipu.program.refusal_frames import brief_refusals
from ignite_ipu.program.step import call_model, unchanged
from ignite_ipu.program.training_step import TrainingStep
from ignite_ipu.session.processes import unwrapped
from ignite_ipu.session.resolved import Resolved, pipeline_request, resolve, with_plan
from ignite_ipu.session.session import IPUSession
from ignite_ipu.torch_names.engines import prepare_batch as ignite_prepare_batch
from ignite_ipu.torch_names.modules import all_parameters

if TYPE_CHECKING:
    from ignite_ipu.pipeline import Pipeline

_COMPILED = ("options", "device_iterations", "replication_factor", "output_mode", "output_return_period")
_OF_EVALUATORS = (*_COMPILED, *OF_PIPELINES, "mixed_precision", "loader_mode", "compile")
_NOT_FOR_EVALUATORS = (
    "it is about training, and an evaluator of a model with a trainer is configured as that. Leave the config out, or "
    "give the evaluator one of its own."
)


@brief_refusals
def create_ipu_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Union[Callable[[Any, Any], torch.Tensor], nn.Module, None],
    device: Optional[Union[str, torch.device]] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = ignite_prepare_batch,
    model_transform: Callable[[Any], Any] = unchanged,
    output_transform: Callable[[Any, Any, Any, torch.Tensor], Any] = loss_item,
    deterministic: bool = False,
    amp_mode: Optional[str] = None,
    scaler: Any = False,
    gradient_accumulation_steps: int = 1,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    *,
    config: Configuration = None,
    options: Optional[Options] = None,
    device_iterations: Optional[int] = None,
    replication_factor: Union[int, str, None] = None,
    max_grad_norm: Optional[float] = None,
    loss_scaling: Optional[float] = None,
    seed: Optional[int] = None,
    pipeline: Optional[Pipeline] = None,
    drop_last: bool = True,
) -> IPUTrainer:
    """Create a trainer as `ignite.engine.create_supervised_trainer` does, whose iterations are IPU device calls.

    One iteration takes deviceIterations * gradientAccumulation * replicationFactor micro-batches, of the size of the
    loader's batches, and makes deviceIterations weight updates.

    Args:
        model: The model, on the CPU. It stays the one to save, load and read; its weights are the newest when read.
        optimizer: SGD, Adam, AdamW or RMSprop of `torch.optim`, or one of `poptorch.optim`; with `update="host"` in
            the config any optimizer. It stays the one that schedulers change, and that is saved and loaded.
        loss_fn: Called with predictions and targets inside the compiled program; returns a scalar. None for a model
            that returns its own loss.
        device: None or "ipu".
        non_blocking: Handed to `prepare_batch`; PopTorch copies batches its own way.
        prepare_batch: Called with `batch, device=None, non_blocking` on the host; returns inputs and targets.
        model_transform: Turns the model's output into the predictions, inside the compiled program.
        output_transform: Called with `x, y, y_pred, loss`; returns `state.output`. The default needs no predictions,
            and then none are copied from the device.
        deterministic: Return a `DeterministicIPUTrainer`, which seeds the host at every start of the data and finds its
            place in it after a resume. The device's random numbers follow `seed` either way.
        amp_mode: None, or "amp", which is `IPUConfig(mixed_precision="fp16")`. Small gradients then need loss scaling.
        scaler: False, or True with `amp_mode="amp"`: `IPUConfig(loss_scaling="auto")`. A `GradScaler` is True: its own
            settings are for GPUs.
        gradient_accumulation_steps: Micro-batches per weight update and replica, all in one iteration.
        model_fn: Calls the model with the inputs, inside the compiled program.
        config: Everything else: an `IPUConfig`, a mapping or the path of a file. It has settings beyond the arguments
            below, and may not contradict them.
        options, device_iterations, replication_factor, max_grad_norm, loss_scaling, seed, pipeline, drop_last: As in
            `IPUConfig`.

    Returns:
        The trainer; `trainer.ipu` is the model's `IPUSession`, and `trainer.config` the settings with these arguments.
        In a native run (`IGNITE_IPU_BACKEND=native`) it is Ignite's own, and arguments for IPUs have no effect, except
        that `seed` seeds torch there, too.

    Raises:
        UnsupportedArgumentError: An argument cannot be honoured on an IPU.
        OptionsError, OptimizerError, LossError, SessionError: The options, the optimizer, the loss or the model cannot.
        PlanError: The pipeline does not suit the model, the options or the IPUs.
        ProcessesError: Several processes would not train one model together.
    """
    on_host: Dict[str, Any] = {
        "non_blocking": non_blocking,
        "prepare_batch": prepare_batch,
        "output_transform": output_transform,
    }
    compiled: Dict[str, Any] = {"model_transform": model_transform, "model_fn": model_fn}
    also: Dict[str, Any] = {"deterministic": deterministic, "amp_mode": amp_mode, "scaler": scaler}
    settings = IPUConfig.of(
        config,
        options=options,
        device_iterations=device_iterations,
        gradient_accumulation_steps=gradient_accumulation_steps if gradient_accumulation_steps != 1 else None,
        replication_factor=replication_factor,
        max_grad_norm=max_grad_norm,
        loss_scaling=loss_scaling,
        seed=seed,
        pipeline=pipeline,
        drop_last=drop_last,
    )
    if backend.choice() == "native":
        everything = {**on_host, **compiled, **also}
        own: IPUTrainer = _native(create_supervised_trainer, device, settings, model, optimizer, loss_fn, **everything)
        return own
    refuse_unsupported(device=device, **also)
    if settings.split_batch is not None:
        raise OptionsError(
            f"split_batch={settings.split_batch} cuts the batches of loops. A trainer takes global batches, which "
            "gradient_accumulation_steps and replication_factor cut."
        )
    settings = _half(settings, amp_mode, scaler)
    mode = _loader_mode(settings, deterministic)
    model = unwrapped(model)
    session = IPUSession.of(model)
    session.trainers.refuse_second()
    predictions = output_transform is not loss_item
    resolved = resolve(settings, model)
    if predictions:
        _refuse_sum(resolved)
    drop_last = settings.drop_last
    if not drop_last:
        refuse_to_train_all(resolved)
    conversion = _updates(optimizer, settings, resolved)
    step = TrainingStep(model, loss_fn, predictions=predictions, half=settings.half_products, **compiled)
    session.prepare_training(step, conversion, resolved, settings.share_ipus)
    last_calls = None if drop_last else LastCalls(session)
    process = ipu_training_step(session, last_calls=last_calls, **on_host)
    loaders = Loaders(resolved, drop_last=drop_last, mode=mode, rewindable=deterministic)
    engine = DeterministicIPUTrainer if deterministic else IPUTrainer
    trainer = engine(process, session, lambda: loaders, None if last_calls is None else lambda: last_calls.made)
    trainer.config = settings
    WeightSync(session.weights, settings.weight_sync).attach(trainer=trainer)
    trainer.add_event_handler(Events.STARTED, Gradients.attach_where_read)
    return trainer


@brief_refusals
def create_ipu_evaluator(
    model: nn.Module,
    metrics: Optional[Dict[str, Metric]] = None,
    device: Optional[Union[str, torch.device]] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = ignite_prepare_batch,
    model_transform: Callable[[Any], Any] = unchanged,
    output_transform: Callable[[Any, Any, Any], Any] = predictions_and_targets,
    amp_mode: Optional[str] = None,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    *,
    config: Configuration = None,
    options: Optional[Options] = None,
    device_iterations: Optional[int] = None,
    replication_factor: Union[int, str, None] = None,
    pipeline: Optional[Pipeline] = None,
) -> IPUEngine:
    """Create an evaluator as `ignite.engine.create_supervised_evaluator` does, whose iterations are IPU device calls.

    Every sample counts once: the last, incomplete batch is filled up for the device and cut again. That is refused for
    a model that mixes the samples of a batch.

    Args:
        model: The model, on the CPU; the newest weights are used, wherever they are.
        metrics: Metrics by name.
        device: None or "ipu".
        non_blocking: Handed to `prepare_batch`.
        prepare_batch: Called with `batch, device=None, non_blocking` on the host; returns inputs and targets.
        model_transform: Turns the model's output into the predictions, inside the compiled program.
        output_transform: Called with `x, y, y_pred`; returns `state.output`. Inputs and targets are the ones that
            belong to the predictions.
        amp_mode: None, or "amp" as for the trainer.
        model_fn: Calls the model with the inputs, inside the compiled program.
        config: Everything else that means something for inference: an `IPUConfig`, a mapping or the path of a file.
            With another output mode than All, the data's last, incomplete device call is left out.
        options, device_iterations, replication_factor, pipeline: As in `IPUConfig`. Without options they are derived
            from the trainer's; without a pipeline layers run where the trainer has them, and `[0]` puts the whole
            model on one IPU.

    Returns:
        The evaluator; `evaluator.ipu` is the model's `IPUSession`. In a native run it is Ignite's own.

    Raises:
        UnsupportedArgumentError: An argument cannot be honoured on an IPU.
        OptionsError, SessionError: The options or the model cannot.
        PlanError: The pipeline does not suit the model.
    """
    functions: Dict[str, Any] = {
        "non_blocking": non_blocking,
        "prepare_batch": prepare_batch,
        "model_transform": model_transform,
        "output_transform": output_transform,
        "model_fn": model_fn,
    }
    settings = IPUConfig.of(
        config,
        options=options,
        device_iterations=device_iterations,
        replication_factor=replication_factor,
        pipeline=pipeline,
    )
    if backend.choice() == "native":
        functions["amp_mode"] = amp_mode
        own: IPUEngine = _native(create_supervised_evaluator, device, settings, model, metrics, **functions)
        return own
    settings.refuse_all_but(_OF_EVALUATORS, _NOT_FOR_EVALUATORS)
    refuse_unsupported(device=device, amp_mode=amp_mode)
    settings = _half(settings, amp_mode)
    mode = _loader_mode(settings)
    model = unwrapped(model)
    session = IPUSession.of(model)
    made: Optional[Loaders] = None
    request = pipeline_request(settings)
    settings = with_plan(settings, request, training=False)
    settings = with_replicas(settings, None if request is None else request.ipus_per_replica(model))
    wanted = IPUConfig(**{name: getattr(settings, name) for name in _COMPILED})
    given = None if settings.options is None else session.inference.resolved(wanted, request)
    if request is not None and not request.automatic:
        request.placement(model)

    def current() -> Resolved:
        return session.inference.resolved(wanted, request) if given is None else given

    def loaders() -> Loaders:
        nonlocal made
        resolved = current()
        if made is None or made.resolved is not resolved:
            made = Loaders(resolved, drop_last=resolved.output_mode != "All", mode=mode)
        return made

    _refuse_sum(current())
    process = evaluation_step(session, current, half=settings.half_products, model=model, **functions)
    evaluator = IPUEngine(process, session, loaders)
    evaluator.config = settings
    for name, metric in (metrics or {}).items():
        metric.attach(evaluator, name)
    return evaluator


_OF_DEVICE_OPTIMIZERS = (
    *("variable", "constant", "substitute", "accum_type", "velocity_accum_type"),
    *("first_order_momentum_accum_type", "second_order_momentum_accum_type"),
)


def _updates(optimizer: Any, config: IPUConfig, resolved: Resolved) -> Union[Conversion, HostUpdates]:
    """Return the device's optimizer, or with `update="host"` the updates that PyTorch makes."""
    if config.update == "auto":
        raise OptionsError(
            "update='auto' is for loops, whose updates may change. A trainer makes one kind of update: leave it out, "
            "or say 'host' for an optimizer that no IPU has."
        )
    if config.update != "host":
        return convert_optimizer(optimizer, **config.of_optimizer())
    for name in config.said():
        if name in _OF_DEVICE_OPTIMIZERS:
            raise OptionsError(
                f"{name}={getattr(config, name)!r} is about an optimizer on the device, and with update='host' there "
                "is none. Leave it out."
            )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"The optimizer is a {type(optimizer).__qualname__}; a torch.optim.Optimizer is needed.")
    if resolved.geometry.device_iterations != 1:
        raise OptionsError(
            f"deviceIterations is {resolved.geometry.device_iterations} with update='host': each device call ends in "
            "an update on the host, so it makes one. Leave device_iterations at 1."
        )
    scaling = config.host_loss_scaling
    return HostUpdates(optimizer, scaling, config.max_grad_norm)


def _refuse_sum(resolved: Resolved) -> None:
    """Refuse to hand predictions out that have been added up."""
    if resolved.output_mode == "Sum":
        raise OptionsError(
            "OutputMode.Sum adds up the predictions of all micro-batches, so no targets belong to them. Use All, Final "
            "or EveryN; create_ipu_averages_evaluator sums metrics on the device."
        )


def _half(config: IPUConfig, amp_mode: Optional[str], scaler: Any = False) -> IPUConfig:
    """Return the settings with the precision of Ignite's arguments."""
    precision = "no" if amp_mode is None else "fp16"
    return IPUConfig.of(config, mixed_precision=precision, loss_scaling="auto" if scaler else None)


def _loader_mode(config: IPUConfig, deterministic: bool = False) -> Optional[Any]:
    """Return the `poptorch.DataLoaderMode`, None if none is said."""
    name, modes = config.loader_mode, backend.poptorch().DataLoaderMode
    if name is None:
        return None
    if name not in modes.__members__:
        raise UnsupportedArgumentError(
            f"loader_mode={name!r}: it says in which process batches are made.{did_you_mean(name, modes.__members__)}"
        )
    if deterministic and name != "Sync":
        raise UnsupportedArgumentError(
            f"deterministic=True with loader_mode={name!r}: an asynchronous loader prepares batches ahead in another "
            "process, where the seeds that the engine sets do not reach. Use DataLoaderMode.Sync."
        )
    return modes[name]


_GRAD_SCALER: Any = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)


def refuse_unsupported(
    device: Optional[Union[str, torch.device]] = None,
    deterministic: bool = False,
    amp_mode: Optional[str] = None,
    scaler: Any = False,
) -> None:
    """Refuse arguments that a factory cannot honour."""
    if device is not None and torch.device(device).type != "ipu":
        raise UnsupportedArgumentError(
            f"device={device!r}: these engines run on IPUs, and PopTorch moves model and batches there by itself. "
            'Leave device out, or pass "ipu".'
        )
    if amp_mode not in (None, "amp"):
        raise UnsupportedArgumentError(
            f'amp_mode={amp_mode!r}: it means a library for another device. Use "amp", which runs matrix products '
            "and convolutions in half precision, or call model.half() and convert the inputs in the data set."
        )
    if scaler and scaler is not True and not isinstance(scaler, _GRAD_SCALER):
        raise UnsupportedArgumentError(
            f"scaler={scaler!r}: pass scaler=True, with which the device scales the loss by itself, or loss_scaling=..."
        )
    if scaler and amp_mode is None:
        raise UnsupportedArgumentError(
            'scaler=True with amp_mode=None: in single precision no gradient needs it. Pass amp_mode="amp", too, or '
            "leave scaler out."
        )


def _native(create: Any, device: Any, config: IPUConfig, model: nn.Module, *others: Any, **arguments: Any) -> Any:
    """Return Ignite's own engine for a native run, on the device that the model is on unless told another."""
    if device is None or torch.device(device).type == "ipu":
        parameter = next(iter(all_parameters(model)), None)  # migrated code has moved the model already
        device = None if parameter is None else parameter.device
    if config.half_products:
        arguments["amp_mode"] = arguments["amp_mode"] or "amp"
    if create is create_supervised_trainer:
        if config.max_grad_norm is not None:
            raise ValueError(
                f"max_grad_norm={config.max_grad_norm!r}: Ignite's own trainer does not clip gradients, and this run "
                "is native (IGNITE_IPU_BACKEND=native). Run it on the emulator or an IPU."
            )
        if config.seed is not None:
            torch.manual_seed(config.seed)  # as the options of a device do
        if config.half_products:
            arguments["scaler"] = arguments["scaler"] or config.loss_scaling == "auto"
        if config.gradient_accumulation_steps is not None:
            arguments["gradient_accumulation_steps"] = config.gradient_accumulation_steps
    return create(model, *others, device=device, **arguments)
