"""`create_ipu_trainer` and `create_ipu_evaluator`: Ignite's factories for supervised engines, on IPUs."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

import torch
from ignite.engine import _prepare_batch as _ignite_prepare_batch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Metric
from torch import nn

from ignite_ipu import backend
from ignite_ipu.engines.engine import DeterministicIPUTrainer, IPUEngine, IPUTrainer
from ignite_ipu.engines.last_calls import LastCalls, refuse_to_train_all
from ignite_ipu.engines.loaders import Loaders
from ignite_ipu.engines.steps import (
    PrepareBatch,
    call_model,
    ipu_evaluation_step,
    ipu_training_step,
    loss_item,
    predictions_and_targets,
    unchanged,
)
from ignite_ipu.errors import OptionsError, UnsupportedArgumentError
from ignite_ipu.handlers.weight_sync import WeightSync
from ignite_ipu.optimizers import convert_optimizer
from ignite_ipu.pipeline.placing.request import Pipeline, PipelineRequest
from ignite_ipu.poptorch_types import Options
from ignite_ipu.program.options import output_mode as _output_mode
from ignite_ipu.program.options import place_tensors
from ignite_ipu.program.options import training_options as _training_options
from ignite_ipu.program.training_step import TrainingStep
from ignite_ipu.session.processes import unwrapped
from ignite_ipu.session.session import IPUSession

__all__ = ["create_ipu_evaluator", "create_ipu_trainer", "native_evaluator", "native_trainer", "refuse_unsupported"]


def create_ipu_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Union[Callable[[Any, Any], torch.Tensor], nn.Module, None],
    device: Optional[Union[str, torch.device]] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = _ignite_prepare_batch,
    model_transform: Callable[[Any], Any] = unchanged,
    output_transform: Callable[[Any, Any, Any, torch.Tensor], Any] = loss_item,
    deterministic: bool = False,
    amp_mode: Optional[str] = None,
    scaler: Any = False,
    gradient_accumulation_steps: int = 1,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    *,
    options: Optional[Options] = None,
    device_iterations: Optional[int] = None,
    replication_factor: Optional[int] = None,
    output_mode: Optional[Any] = None,
    output_return_period: Optional[int] = None,
    variable: Sequence[str] = (),
    constant: Sequence[str] = (),
    max_grad_norm: Optional[float] = None,
    loss_scaling: Optional[float] = None,
    seed: Optional[int] = None,
    share_ipus: bool = False,
    pipeline: Optional[Pipeline] = None,
    execution: Optional[str] = None,
    ipus: Optional[int] = None,
    memory_per_ipu: Optional[int] = None,
    offload: Sequence[str] = (),
    shard: Sequence[str] = (),
    weight_sync: bool = True,
    loader_mode: Optional[Any] = None,
    drop_last: bool = True,
) -> IPUTrainer:
    """Create a trainer as `ignite.engine.create_supervised_trainer` does, whose iterations are IPU device calls.

    One iteration takes deviceIterations * gradientAccumulation * replicationFactor micro-batches, of the size of the
    loader's batches, and makes deviceIterations weight updates.

    Args:
        model: The model, on the CPU. It stays the one to save, load and read; its weights are the newest when read.
        optimizer: SGD, Adam, AdamW or RMSprop of `torch.optim`, or one of `poptorch.optim`. It stays the one that
            schedulers change, and that is saved and loaded.
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
        amp_mode: None, or "amp": products in half precision, by the rule of
            `ignite_ipu.program.forward.half_precision`. Small gradients then need `loss_scaling`.
        scaler: False, or True with `amp_mode="amp"`: the device scales the loss by itself
            (`options.Training.setAutomaticLossScaling`). A `GradScaler` is True: its own settings are for GPUs.
        gradient_accumulation_steps: Micro-batches per weight update and replica, all in one iteration.
        model_fn: Calls the model with the inputs, inside the compiled program.
        options: `poptorch.Options` for training.
        device_iterations: Weight updates per iteration.
        replication_factor: Replicas of the model.
        output_mode: `poptorch.OutputMode`: which micro-batches' predictions and losses come back; all by default.
        output_return_period: N of `OutputMode.EveryN`: the last of every N device iterations come back.
        variable: Hyper-parameters of the optimizer that may change; by default the learning rate and all that are not
            zero.
        constant: Hyper-parameters to compile in.
        max_grad_norm: Clip gradients to this global norm; for Adam, AdamW, and SGD without momentum.
        loss_scaling: Factor on the loss gradient, for half precision.
        seed: Of the device's random numbers; seeds the host's torch, too.
        share_ipus: Let training and inference take turns on the same IPUs instead of each having their own.
        pipeline: What spreads the model over several IPUs: names or indices of the layers at which stages begin, pairs
            of these with an IPU, layers per IPU such as `[4, -1, -1, 4]`, a `Placement`, a `Plan`, or "auto", which
            plans with the first batch. It replaces the execution strategy of `options`.
        execution: "pipelined" (the default), "sharded", "serial phased" or "parallel phased".
        ipus: IPUs there are for training: what "auto" may use, and a limit otherwise.
        memory_per_ipu: Bytes that one IPU has, to which the estimated memory is held before compiling.
        offload: Keep "optimizer" state, "weights", "activations" or "accumulators" in off-chip memory.
        shard: Split these between replicas instead of keeping them whole on each.
        weight_sync: Copy the newest weights to the host when a run ends; else they are copied when somebody asks for
            them, which a model that is trained again at once saves.
        loader_mode: `poptorch.DataLoaderMode` for loaders that are swapped.
        drop_last: Leave out the samples at the end of the data that do not fill a device call, and say how many they
            are; False to train on them, too, by programs of their size.

    Returns:
        The trainer; `trainer.ipu` is the model's `IPUSession`. In a native run (`IGNITE_IPU_BACKEND=native`) it is
        Ignite's own, and what is about IPUs alone has no effect.

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
    if backend.choice() == "native":
        steps = {"max_grad_norm": max_grad_norm, "gradient_accumulation_steps": gradient_accumulation_steps}
        native: IPUTrainer = native_trainer(model, optimizer, loss_fn, device, **on_host, **compiled, **also, **steps)
        return native
    refuse_unsupported(device=device, loader_mode=loader_mode, **also)
    model = unwrapped(model)
    session = IPUSession.of(model)
    session.refuse_second_trainer()
    predictions = output_transform is not loss_item
    step = TrainingStep(model, loss_fn, predictions=predictions, half=amp_mode is not None, **compiled)
    request = PipelineRequest.of(pipeline, execution=execution, ipus=ipus, memory_per_ipu=memory_per_ipu)
    factors = {
        "device_iterations": device_iterations,
        "gradient_accumulation": gradient_accumulation_steps if gradient_accumulation_steps != 1 else None,
        "replication_factor": replication_factor,
    }
    training = _training_options(
        options,
        **_with_plan(factors, request, options, training=True),
        output_mode=output_mode,
        output_return_period=output_return_period,
        seed=seed,
        ipus_per_replica=1 if request is None else request.ipus_per_replica(model),
    )
    if predictions:
        _refuse_sum(training, training=True)
    if scaler:
        training.Training.setAutomaticLossScaling(True)
    if not drop_last:
        refuse_to_train_all(training, pipeline=request is not None)
    place_tensors(training, offload, shard)
    conversion = convert_optimizer(
        optimizer, variable=variable, constant=constant, max_grad_norm=max_grad_norm, loss_scaling=loss_scaling
    )
    session.prepare_training(step, conversion, training, request, share_ipus)
    last_calls = None if drop_last else LastCalls(session)
    process = ipu_training_step(session, train=None if last_calls is None else last_calls.train, **on_host)
    loaders = Loaders(training, training=True, drop_last=drop_last, mode=loader_mode, rewindable=deterministic)
    engine = DeterministicIPUTrainer if deterministic else IPUTrainer
    trainer = engine(process, session, lambda: loaders, None if last_calls is None else lambda: last_calls.made)
    if weight_sync:
        WeightSync(session.weights).attach(trainer=trainer)
    return trainer


def create_ipu_evaluator(
    model: nn.Module,
    metrics: Optional[Dict[str, Metric]] = None,
    device: Optional[Union[str, torch.device]] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = _ignite_prepare_batch,
    model_transform: Callable[[Any], Any] = unchanged,
    output_transform: Callable[[Any, Any, Any], Any] = predictions_and_targets,
    amp_mode: Optional[str] = None,
    model_fn: Callable[[nn.Module, Any], Any] = call_model,
    *,
    options: Optional[Options] = None,
    device_iterations: Optional[int] = None,
    replication_factor: Optional[int] = None,
    output_mode: Optional[Any] = None,
    output_return_period: Optional[int] = None,
    pipeline: Optional[Pipeline] = None,
    execution: Optional[str] = None,
    ipus: Optional[int] = None,
    memory_per_ipu: Optional[int] = None,
    loader_mode: Optional[Any] = None,
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
        options: `poptorch.Options` for inference; derived from the trainer's when None.
        device_iterations: Micro-batches per replica and iteration.
        replication_factor: Replicas of the model.
        output_mode: `poptorch.OutputMode`: which micro-batches' predictions come back; all by default. With others the
            data's last, incomplete device call is left out.
        output_return_period: N of `OutputMode.EveryN`: the last of every N device iterations come back.
        pipeline, execution, ipus, memory_per_ipu: What spreads the model over several IPUs, as for the trainer. Left
            out, layers run where the trainer has them; `[0]` puts the whole model on one IPU.
        loader_mode: `poptorch.DataLoaderMode` for loaders that are swapped.

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
    if backend.choice() == "native":
        native: IPUEngine = native_evaluator(model, metrics, device, amp_mode=amp_mode, **functions)
        return native
    refuse_unsupported(device=device, amp_mode=amp_mode, loader_mode=loader_mode)
    model = unwrapped(model)
    session = IPUSession.of(model)
    made: Optional[Tuple[Options, Loaders]] = None
    request = PipelineRequest.of(pipeline, execution=execution, ipus=ipus, memory_per_ipu=memory_per_ipu)
    wanted = {"device_iterations": device_iterations, "replication_factor": replication_factor}
    wishes = {
        **_with_plan(wanted, request, options, training=False),
        "output_mode": output_mode,
        "output_return_period": output_return_period,
    }
    given = None if options is None else session.inference.options(options, **wishes)
    if request is not None and not request.automatic:
        request.placement(model)

    def current_options() -> Options:
        return session.inference.options(None, **wishes) if given is None else given

    def loaders() -> Loaders:
        nonlocal made
        current = current_options()
        if made is None or made[0] is not current:
            everything = _output_mode(current, training=False).name == "All"
            made = current, Loaders(current, training=False, drop_last=not everything, mode=loader_mode)
        return made[1]

    _refuse_sum(current_options(), training=False)
    half = amp_mode is not None
    process = ipu_evaluation_step(
        session, options=current_options, pipeline=request, half=half, model=model, **functions
    )
    evaluator = IPUEngine(process, session, loaders)
    for name, metric in (metrics or {}).items():
        metric.attach(evaluator, name)
    return evaluator


def _refuse_sum(options: Options, training: bool) -> None:
    """Refuse to hand predictions out that have been added up.

    Raises:
        OptionsError: The output mode is Sum.
    """
    if _output_mode(options, training).name == "Sum":
        raise OptionsError(
            "OutputMode.Sum adds up the predictions of all micro-batches, so no targets belong to them. Use All, Final "
            "or EveryN; create_ipu_averages_evaluator sums metrics on the device."
        )


def _with_plan(
    factors: Dict[str, Optional[int]], request: Optional[PipelineRequest], options: Optional[Options], training: bool
) -> Dict[str, Optional[int]]:
    """Return batching factors, a plan's where neither arguments nor options say one."""
    planned = {} if request is None else request.factors(training)
    said = {
        "device_iterations": options is not None and options.device_iterations != 1,
        "gradient_accumulation": options is not None and options.Training.gradient_accumulation != 1,
        "replication_factor": options is not None and options.replication_factor != 1,
    }
    return {name: planned.get(name) if value is None and not said[name] else value for name, value in factors.items()}


_GRAD_SCALER: Any = getattr(torch.amp, "GradScaler", torch.cuda.amp.GradScaler)


def refuse_unsupported(
    device: Optional[Union[str, torch.device]] = None,
    deterministic: bool = False,
    amp_mode: Optional[str] = None,
    scaler: Any = False,
    loader_mode: Optional[Any] = None,
) -> None:
    """Refuse what a factory cannot honour.

    Raises:
        UnsupportedArgumentError: `device` is another one than the IPU, or an argument has a value that means nothing
            there.
    """
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
    modes = backend.poptorch().DataLoaderMode
    if loader_mode is not None and loader_mode not in tuple(modes):
        raise UnsupportedArgumentError(
            f"loader_mode={loader_mode!r}: it says in which process batches are made. Use one of "
            f"{', '.join(f'poptorch.DataLoaderMode.{mode.name}' for mode in modes)}."
        )
    if deterministic and loader_mode is not None and loader_mode is not modes.Sync:
        raise UnsupportedArgumentError(
            f"deterministic=True with loader_mode={loader_mode!r}: an asynchronous loader prepares batches ahead in "
            "another process, where the seeds that the engine sets do not reach. Use DataLoaderMode.Sync."
        )


def native_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Any,
    device: Optional[Union[str, torch.device]],
    *,
    max_grad_norm: Optional[float] = None,
    **arguments: Any,
) -> Any:
    """Return Ignite's own trainer for a native run, on the device that the model is on unless told another.

    Raises:
        ValueError: `max_grad_norm` is given, and Ignite's trainer does not clip.
    """
    if max_grad_norm is not None:
        raise ValueError(
            f"max_grad_norm={max_grad_norm!r}: Ignite's own trainer does not clip gradients, and this run is native "
            "(IGNITE_IPU_BACKEND=native). Run it on the emulator or an IPU."
        )
    return create_supervised_trainer(model, optimizer, loss_fn, device=_device(model, device), **arguments)


def native_evaluator(
    model: nn.Module,
    metrics: Optional[Dict[str, Metric]],
    device: Optional[Union[str, torch.device]],
    **arguments: Any,
) -> Any:
    """Return Ignite's own evaluator for a native run, as `native_trainer` does."""
    return create_supervised_evaluator(model, metrics=metrics, device=_device(model, device), **arguments)


def _device(model: nn.Module, device: Optional[Union[str, torch.device]]) -> Optional[Union[str, torch.device]]:
    """Return the device that batches go to: the model's own, since migrated code has moved the model already."""
    if device is not None and torch.device(device).type != "ipu":
        return device
    parameter = next(model.parameters(), None)
    return None if parameter is None else parameter.device
