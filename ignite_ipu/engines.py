"""`create_ipu_trainer` and `create_ipu_evaluator`: Ignite's factories for supervised engines, on IPUs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Callable, Dict, Iterable, Mapping, Optional, Sequence, Tuple, Union

import torch
from ignite.engine import Engine, Events, State
from ignite.engine import _prepare_batch as _ignite_prepare_batch
from ignite.metrics import Metric
from torch import nn

from ignite_ipu.arguments import refuse_unsupported
from ignite_ipu.counting import Counts
from ignite_ipu.data_position import DataPosition
from ignite_ipu.deterministic import DeterministicRuns
from ignite_ipu.events import IPUEvents
from ignite_ipu.handlers.weight_sync import WeightSync
from ignite_ipu.loaders import Loaders
from ignite_ipu.locations import place_tensors
from ignite_ipu.loss import TrainingStep
from ignite_ipu.optimizers import convert_optimizer
from ignite_ipu.options import training_options as _training_options
from ignite_ipu.pipeline.request import Pipeline, PipelineRequest
from ignite_ipu.processes import check_same_weights, describe_processes, unwrapped
from ignite_ipu.programs import Program
from ignite_ipu.random_states import read_random_states, write_random_states
from ignite_ipu.rows import map_tensors
from ignite_ipu.session import IPUSession
from ignite_ipu.step import EvaluationStep

__all__ = [
    "DeterministicIPUTrainer",
    "IPUEngine",
    "IPUTrainer",
    "create_ipu_evaluator",
    "create_ipu_trainer",
    "ipu_evaluation_step",
    "ipu_training_step",
]

PrepareBatch = Callable[..., Any]
Step = Callable[[Engine, Any], Any]


def _call(model: nn.Module, x: Any) -> Any:
    return model(x)


def _same(output: Any) -> Any:
    return output


def _loss_item(x: Any, y: Any, y_pred: Any, loss: torch.Tensor) -> Any:
    return loss.item()


def _predictions_and_targets(x: Any, y: Any, y_pred: Any) -> Any:
    return y_pred, y


def _with_plan(
    factors: Dict[str, Optional[int]], request: Optional[PipelineRequest], options: Any, training: bool
) -> Dict[str, Optional[int]]:
    """Return batching factors, a plan's where neither arguments nor options say one."""
    planned = {} if request is None else request.factors(training)
    said = {
        "device_iterations": options is not None and options.device_iterations != 1,
        "gradient_accumulation": options is not None and options.Training.gradient_accumulation != 1,
        "replication_factor": options is not None and options.replication_factor != 1,
    }
    return {name: planned.get(name) if value is None and not said[name] else value for name, value in factors.items()}


class IPUEngine(Engine):
    """An Ignite engine whose steps are device calls.

    It swaps the loaders it is given for PopTorch's, fires `IPUEvents`, and releases the device when an exception ends a
    run: the newest weights are on the host then.

    Args:
        process_function: The step.
        session: What it shares with the other engines over the model.
        loaders: Gives what makes PopTorch's loaders, once the options are known.

    Attributes:
        ipu: The session.
    """

    def __init__(self, process_function: Step, session: IPUSession, loaders: Callable[[], Loaders]) -> None:
        super().__init__(process_function)
        self.ipu = session
        self._loaders = loaders
        session.listen(self)
        self.add_event_handler(Events.EPOCH_STARTED, session.check_model)
        self.add_event_handler(Events.GET_BATCH_COMPLETED, self._own_batch)

    def run(self, data: Optional[Iterable[Any]] = None, *args: Any, **kwargs: Any) -> State:
        """Run as `Engine.run` does, over PopTorch's loader for `data`.

        Raises:
            LoaderError: The data is smaller than one device call, or empty.
        """
        return super().run(self._loaders().swap(data), *args, **kwargs)

    def set_data(self, data: Any) -> None:
        """Go on with other data, as `Engine.set_data` does."""
        super().set_data(self._loaders().swap(data))

    def _own_batch(self) -> None:
        # An asynchronous loader yields its own memory, which the next batch overwrites; handlers and metrics keep batches.
        if getattr(self.state.dataloader, "_accessor", None) is not None:
            self.state.batch = map_tensors(self.state.batch, torch.clone)

    def _handle_exception(self, e: BaseException) -> None:
        # Not an EXCEPTION_RAISED handler: with one attached, Ignite takes the exception for handled.
        self.ipu.release()
        self.fire_event(IPUEvents.RUN_FAILED)
        super()._handle_exception(e)


class IPUTrainer(IPUEngine):
    """The engine that `create_ipu_trainer` returns.

    Its state dictionary also holds the random states of host and device, so that a resumed run draws what the
    uninterrupted one does. Taking it at the end of an epoch pins the host's: the next epoch starts from it, whatever
    other handlers draw in between.

    Attributes:
        counts: Counts weight updates, micro-batches and samples into `state`, and fires `CountEvents`.
    """

    def __init__(self, process_function: Step, session: IPUSession, loaders: Callable[[], Loaders]) -> None:
        super().__init__(process_function, session, loaders)
        self._pinned: Optional[Tuple[int, Mapping[str, Any]]] = None
        self._loaded = False
        self._position = DataPosition()
        self.add_event_handler(Events.EPOCH_STARTED, self._restore_pinned)
        self.counts = Counts(lambda: None if session.training is None else session.training.geometry)
        self.counts.attach(self)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return Ignite's state dictionary with the random states as `ipu`."""
        state: OrderedDict[str, Any] = super().state_dict()
        iteration, length = self.state.iteration, self.state.epoch_length
        if self._pinned is None or self._pinned[0] != iteration or not length or iteration % length:
            self._pinned = iteration, read_random_states()
        now = self._pinned[1]
        device = self.ipu.random_state()
        state["ipu"] = {
            "host_random_state": now,
            "data": self._position.state_dict(),
            "device_random_state": None if device is None else torch.tensor(device, dtype=torch.int64),
            "counts": self.counts.state_dict(self),
        }
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned, or the one of an ordinary Ignite engine."""
        plain = {key: value for key, value in state_dict.items() if key != "ipu"}
        super().load_state_dict(plain)
        self._loaded = True
        saved = state_dict.get("ipu")
        if saved is None:
            # An ordinary engine makes one weight update from one batch in each iteration; samples it did not count.
            self.counts.load_state_dict(dict.fromkeys(("weight_updates", "micro_batches"), self.state.iteration))
            return
        self._pinned = self.state.iteration, saved["host_random_state"]
        between_epochs = bool(self.state.epoch_length) and self.state.iteration % self.state.epoch_length == 0
        self._position.load_state_dict(saved["data"], None if between_epochs else saved["host_random_state"])
        self.counts.load_state_dict(saved["counts"])
        if saved["device_random_state"] is not None:
            self.ipu.set_random_state(saved["device_random_state"].tolist())

    def run(self, data: Optional[Iterable[Any]] = None, *args: Any, **kwargs: Any) -> State:
        """Run as `IPUEngine.run` does, and tell the session about the data.

        A run that was loaded from its end stays ended, where Ignite would start another from the trained weights.
        """
        loaded, self._loaded = self._loaded, False
        if loaded and self._has_reached(*args, **kwargs):
            self.logger.info("The run that was loaded has reached its end already: nothing to do.")
            return self.state
        if data is not None:
            self.ipu.data = self._loaders().explain(data)
        return super().run(data, *args, **kwargs)

    def _has_reached(
        self, max_epochs: Optional[int] = None, max_iters: Optional[int] = None, *rest: Any, **kw: Any
    ) -> bool:
        state = self.state
        epochs = max_epochs if max_epochs is not None else state.max_epochs
        iterations = max_iters if max_iters is not None else getattr(state, "max_iters", None)
        if iterations is not None:
            return bool(state.iteration >= iterations)
        return bool(epochs and state.epoch_length and state.iteration >= epochs * state.epoch_length)

    def _setup_dataloader_iter(self) -> None:
        if self.state.dataloader is None:
            super()._setup_dataloader_iter()
        else:
            self._dataloader_iter = self._position.iterate(self.state.dataloader)

    def _restore_pinned(self) -> None:
        pinned, self._pinned = self._pinned, None
        if pinned is not None and self.state.epoch_length and self.state.iteration % self.state.epoch_length == 0:
            iteration, states = pinned
            if iteration == self.state.iteration:
                write_random_states(states)


class DeterministicIPUTrainer(IPUTrainer, DeterministicRuns):
    """The engine that `create_ipu_trainer(..., deterministic=True)` returns; see Ignite's `DeterministicEngine`."""

    _setup_dataloader_iter = DeterministicRuns._setup_dataloader_iter

    def _restore_pinned(self) -> None:
        # The engine seeds the host itself, at every start of the data.
        self._pinned = None


def ipu_training_step(
    session: IPUSession,
    *,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = _ignite_prepare_batch,
    output_transform: Callable[[Any, Any, Any, torch.Tensor], Any] = _loss_item,
) -> Step:
    """Return the step function of a trainer, for an `Engine` of your own.

    Args:
        session: The model's session, prepared for training.
        non_blocking: Handed to `prepare_batch`.
        prepare_batch: Called with `batch, device=None, non_blocking`; returns inputs and targets.
        output_transform: Called with `x, y, y_pred, loss`; returns the engine's `state.output`. Targets and inputs are
            the ones that belong to the predictions, the loss is the mean over the micro-batches that come back.
    """

    def step(engine: Engine, batch: Any) -> Any:
        x, y = prepare_batch(batch, device=None, non_blocking=non_blocking)
        return output_transform(*session.train(x, y))

    return step


def ipu_evaluation_step(
    session: IPUSession,
    *,
    options: Optional[Callable[[], Any]] = None,
    pipeline: Optional[PipelineRequest] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = _ignite_prepare_batch,
    model_transform: Callable[[Any], Any] = _same,
    output_transform: Callable[[Any, Any, Any], Any] = _predictions_and_targets,
    model_fn: Callable[[nn.Module, Any], Any] = _call,
    half: bool = False,
) -> Step:
    """Return the step function of an evaluator, for an `Engine` of your own; it always uses the newest weights.

    Args:
        session: The model's session.
        options: Gives the `poptorch.Options` of the inference program; derived from the trainer's when None.
        pipeline: What spreads the model over IPUs; the trainer's layers are put where they train when None.
        non_blocking: Handed to `prepare_batch`.
        prepare_batch: Called with `batch, device=None, non_blocking`; returns inputs and targets.
        model_transform: Turns the model's output into the predictions, inside the compiled program.
        output_transform: Called with `x, y, y_pred`; returns the engine's `state.output`.
        model_fn: Calls the model with the inputs, inside the compiled program.
        half: Whether products run in half precision, by the rule of `ignite_ipu.mixed_precision`.
    """
    program: Optional[Program] = None

    def step(engine: Engine, batch: Any) -> Any:
        nonlocal program
        if program not in session.evaluations:
            module = EvaluationStep(session.model, model_fn=model_fn, model_transform=model_transform, half=half)
            program = session.prepare_evaluation(module, (options or session.evaluation_options)(), pipeline)
        assert program is not None
        x, y = prepare_batch(batch, device=None, non_blocking=non_blocking)
        return output_transform(x, y, session.evaluate(program, x))

    return step


def create_ipu_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: Union[Callable[[Any, Any], torch.Tensor], nn.Module, None],
    device: Optional[Union[str, torch.device]] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = _ignite_prepare_batch,
    model_transform: Callable[[Any], Any] = _same,
    output_transform: Callable[[Any, Any, Any, torch.Tensor], Any] = _loss_item,
    deterministic: bool = False,
    amp_mode: Optional[str] = None,
    scaler: Any = False,
    gradient_accumulation_steps: int = 1,
    model_fn: Callable[[nn.Module, Any], Any] = _call,
    *,
    options: Optional[Any] = None,
    device_iterations: Optional[int] = None,
    replication_factor: Optional[int] = None,
    output_mode: Optional[Any] = None,
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
        amp_mode: None, or "amp": products in half precision, by the rule of `ignite_ipu.mixed_precision`. Small
            gradients then need `loss_scaling`.
        scaler: Only False: the device scales the loss itself, see `loss_scaling`.
        gradient_accumulation_steps: Micro-batches per weight update and replica, all in one iteration.
        model_fn: Calls the model with the inputs, inside the compiled program.
        options: `poptorch.Options` for training.
        device_iterations: Weight updates per iteration.
        replication_factor: Replicas of the model.
        output_mode: `poptorch.OutputMode`: which micro-batches' predictions and losses come back; all by default.
        variable: Hyper-parameters of the optimizer that may change; by default the learning rate and all that are not
            zero.
        constant: Hyper-parameters to compile in.
        max_grad_norm: Clip gradients to this global norm.
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
        weight_sync: Attach a `WeightSync` handler.
        loader_mode: `poptorch.DataLoaderMode` for loaders that are swapped.

    Returns:
        The trainer; `trainer.ipu` is the model's `IPUSession`.

    Raises:
        UnsupportedArgumentError: An argument cannot be honoured on an IPU.
        OptionsError, OptimizerError, LossError, SessionError: The options, the optimizer, the loss or the model cannot.
        PlanError: The pipeline does not suit the model, the options or the IPUs.
    """
    refuse_unsupported(
        device=device, deterministic=deterministic, loader_mode=loader_mode, amp_mode=amp_mode, scaler=scaler
    )
    model = unwrapped(model)
    session = IPUSession.of(model)
    session.refuse_second_trainer()
    predictions = output_transform is not _loss_item
    step = TrainingStep(
        model,
        loss_fn,
        model_fn=model_fn,
        model_transform=model_transform,
        predictions=predictions,
        half=amp_mode is not None,
    )
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
        seed=seed,
        ipus_per_replica=1 if request is None else request.ipus_per_replica(model),
    )
    place_tensors(training, offload, shard)
    describe_processes(training)
    check_same_weights(model)
    conversion = convert_optimizer(
        optimizer, variable=variable, constant=constant, max_grad_norm=max_grad_norm, loss_scaling=loss_scaling
    )
    session.prepare_training(step, conversion, training, request)
    session.shares_ipus |= share_ipus
    process = ipu_training_step(
        session, non_blocking=non_blocking, prepare_batch=prepare_batch, output_transform=output_transform
    )
    loaders = Loaders(training, training=True, mode=loader_mode, rewindable=deterministic)
    engine = DeterministicIPUTrainer if deterministic else IPUTrainer
    trainer = engine(process, session, lambda: loaders)
    if weight_sync:
        WeightSync(session.weights).attach(trainer=trainer)
    return trainer


def create_ipu_evaluator(
    model: nn.Module,
    metrics: Optional[Dict[str, Metric]] = None,
    device: Optional[Union[str, torch.device]] = None,
    non_blocking: bool = False,
    prepare_batch: PrepareBatch = _ignite_prepare_batch,
    model_transform: Callable[[Any], Any] = _same,
    output_transform: Callable[[Any, Any, Any], Any] = _predictions_and_targets,
    amp_mode: Optional[str] = None,
    model_fn: Callable[[nn.Module, Any], Any] = _call,
    *,
    options: Optional[Any] = None,
    device_iterations: Optional[int] = None,
    replication_factor: Optional[int] = None,
    pipeline: Optional[Pipeline] = None,
    execution: Optional[str] = None,
    ipus: Optional[int] = None,
    memory_per_ipu: Optional[int] = None,
    weight_sync: bool = True,
    loader_mode: Optional[Any] = None,
) -> IPUEngine:
    """Create an evaluator as `ignite.engine.create_supervised_evaluator` does, whose iterations are IPU device calls.

    Every sample counts once: the last, incomplete batch is filled up for the device and cut again.

    Args:
        model: The model, on the CPU; the newest weights are used, wherever they are.
        metrics: Metrics by name.
        device: None or "ipu".
        non_blocking: Handed to `prepare_batch`.
        prepare_batch: Called with `batch, device=None, non_blocking` on the host; returns inputs and targets.
        model_transform: Turns the model's output into the predictions, inside the compiled program.
        output_transform: Called with `x, y, y_pred`; returns `state.output`.
        amp_mode: None, or "amp" as for the trainer.
        model_fn: Calls the model with the inputs, inside the compiled program.
        options: `poptorch.Options` for inference; derived from the trainer's when None.
        device_iterations: Micro-batches per replica and iteration.
        replication_factor: Replicas of the model.
        pipeline, execution, ipus, memory_per_ipu: What spreads the model over several IPUs, as for the trainer. Left
            out, layers run where the trainer has them; `[0]` puts the whole model on one IPU.
        weight_sync: Attach a `WeightSync` handler.
        loader_mode: `poptorch.DataLoaderMode` for loaders that are swapped.

    Returns:
        The evaluator; `evaluator.ipu` is the model's `IPUSession`.

    Raises:
        UnsupportedArgumentError: An argument cannot be honoured on an IPU.
        OptionsError, SessionError: The options or the model cannot.
        PlanError: The pipeline does not suit the model.
    """
    refuse_unsupported(device=device, amp_mode=amp_mode)
    model = unwrapped(model)
    session = IPUSession.of(model)
    made: Dict[int, Loaders] = {}
    request = PipelineRequest.of(pipeline, execution=execution, ipus=ipus, memory_per_ipu=memory_per_ipu)
    wanted = {"device_iterations": device_iterations, "replication_factor": replication_factor}
    factors = _with_plan(wanted, request, options, training=False)
    if request is not None and not request.automatic:
        request.placement(model)

    def current_options() -> Any:
        return session.evaluation_options(options, **factors)

    def loaders() -> Loaders:
        current = current_options()
        if id(current) not in made:
            made.clear()
            made[id(current)] = Loaders(current, training=False, mode=loader_mode)
        return made[id(current)]

    process = ipu_evaluation_step(
        session,
        options=current_options,
        pipeline=request,
        non_blocking=non_blocking,
        prepare_batch=prepare_batch,
        model_transform=model_transform,
        output_transform=output_transform,
        model_fn=model_fn,
        half=amp_mode is not None,
    )
    evaluator = IPUEngine(process, session, loaders)
    for name, metric in (metrics or {}).items():
        metric.attach(evaluator, name)
    if weight_sync:
        WeightSync(session.weights).attach(evaluator=evaluator)
    return evaluator
