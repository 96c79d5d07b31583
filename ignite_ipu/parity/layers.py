"""The same training steps on the host and on the device, from the same state, compared layer by layer.

Forward hooks see every layer's output; on the device the compiled step returns them beside its predictions. Gradients
come back as anchored tensors. It uses only public features of PopTorch.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import logging
import math
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

import torch
from ignite.engine import Events
from torch import nn

from ignite_ipu import backend
from ignite_ipu.engines.factories import create_ipu_trainer
from ignite_ipu.engines.loaders import ReadyBatches
from ignite_ipu.errors import OptionsError, ParityError
from ignite_ipu.handlers.gradients import Gradients
from ignite_ipu.migration.trial.setup import ModelCall, Setup
from ignite_ipu.parity.layer_outputs import LayerOutputs
from ignite_ipu.program.config import Configuration, IPUConfig
from ignite_ipu.program.geometry import BatchGeometry
from ignite_ipu.program.options import own_options, training_options, with_replicas
from ignite_ipu.program.tensors.rows import join_rows, join_tensors
from ignite_ipu.program.training_step import find_loss
from ignite_ipu.torch_names.modules import DROPOUT

# How far two results may be apart: this part of the largest value, plus a floor for values that are noise around zero.
TOLERANCES: Dict[torch.dtype, Tuple[float, float]] = {
    torch.float64: (1e-4, 1e-6),
    torch.float32: (1e-4, 1e-6),
    torch.float16: (1e-2, 1e-4),
    torch.bfloat16: (5e-2, 1e-3),
}
HONOURED = (
    *("gradient_accumulation_steps", "replication_factor", "mixed_precision", "loss_scaling", "accum_type"),
    *("velocity_accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type"),
    *("offload", "shard", "variable", "constant", "seed", "compile", "options"),
)
"""Settings under which the device's results can be compared with native ones."""

# The device's type for each type; other types stay the same.
_KEPT: Dict[torch.dtype, Tuple[torch.dtype, ...]] = {torch.float64: (torch.float64, torch.float32)}


@dataclasses.dataclass(frozen=True)
class Difference:
    """Distance between the two values of one result, of a kind in `_KINDS`, of one update, which count from 1.

    The `largest` absolute difference may be as large as `allowed`; `scale` is the largest absolute value on the host,
    and `dtype` the device's. A remark has further differences: shape, type, values that are not finite.
    """

    step: int
    kind: str
    name: str
    dtype: str
    largest: float
    allowed: float
    scale: float
    remark: str = ""

    @property
    def agrees(self) -> bool:
        """True if it is within the tolerance; NaN on both sides agrees."""
        return self.largest <= self.allowed

    def __str__(self) -> str:
        place = f"{self.kind} of {self.name} in update {self.step} ({self.dtype})"
        if self.remark:
            return f"{place}: {self.remark}"
        return (
            f"{place}: largest difference {self.largest:.3g} where values reach {self.scale:.3g}; "
            f"{self.allowed:.3g} is allowed"
        )


@dataclasses.dataclass(frozen=True)
class ParityReport:
    """Differences of every result, in the order in which they are computed, after some updates of so many batches.

    Remarks list the changes that make results comparable.
    """

    differences: Tuple[Difference, ...]
    steps: int
    micro_batches: int
    remarks: Tuple[str, ...]

    @property
    def first(self) -> Optional[Difference]:
        """The first result that is not within its tolerance."""
        return next((difference for difference in self.differences if not difference.agrees), None)

    @property
    def agrees(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        counts = {kind: sum(d.kind == kind and d.step == 1 for d in self.differences) for kind in _KINDS}
        counted = (
            f"{self.steps} updates from {self.micro_batches} micro-batches each: {counts['output']} layer outputs, the "
            f"loss, {counts['gradient']} gradients and {counts['weight']} weights and buffers compared after each."
        )
        return "\n".join([counted, *self.remarks, *self._verdict()])

    def _verdict(self) -> Iterator[str]:
        first = self.first
        if first is None:
            closest = max(self.differences, key=lambda d: d.largest / d.allowed if d.allowed else 0.0)
            yield f"They agree. Nearest to its tolerance: {closest}." if closest.largest else "They agree exactly."
            return
        yield f"They diverge. First: {first}."
        before = self.differences[: self.differences.index(first)]
        agreed = [d.name for d in before if (d.kind, d.step) == ("gradient", first.step)]
        if first.kind == "gradient":
            after = f"that of {agreed[-1]} agrees" if agreed else "it is the first of the backward pass"
            yield f"All outputs agree, and {after}: the backward pass differs between there and {first.name}."
        elif first.kind == "weight" and first.name in agreed:
            yield (
                "Its gradient agrees. An optimizer that divides by the gradient's size, as Adam does, makes whole "
                "updates of rounding where gradients are next to nothing; SGD does not."
            )


_KINDS = ("output", "loss", "gradient", "weight")
# Results of one update: kind -> name -> tensor.
Results = Dict[str, Dict[str, torch.Tensor]]


def compare_training(
    factory: Callable[[], Any],
    steps: int = 3,
    *,
    config: Configuration = None,
    tolerance: Optional[float] = None,
    **arguments: Any,
) -> ParityReport:
    """Train for some updates on the host and on the device, and compare everything they compute.

    The factory is called twice; the second model and optimizer get the state of the first ones. Dropout is switched off
    on both sides, because their random numbers differ.

    Args:
        factory: Returns a model, its optimizer, loss and batches, as `Setup` describes.
        steps: Weight updates, each from so many micro-batches for each replica on the device.
        config: Settings of the device: those in `HONOURED`. On the host, everything stays in the model's own precision.
        tolerance: Part of the largest value that results may differ by; by default one for each type.
        arguments: Settings, too, by their names.

    Raises:
        OptionsError: The settings contradict each other, or one is not in `HONOURED`.
        ParityError: The factory returns something else, the same model twice, two that differ, no batches, a random
            model, or one that fails on the host already.
    """
    config = with_replicas(IPUConfig.of(config, **arguments))
    config.refuse_all_but(HONOURED, f"parity compares updates one by one under {', '.join(HONOURED)}; leave it out.")
    geometry = BatchGeometry.from_options(training_options(config), 1)
    if geometry.device_iterations > 1:
        raise OptionsError("deviceIterations is more than 1 in the options, but parity compares one update per call.")
    replicas, half = geometry.replication_factor, config.half_products
    native, device = Setup.of(factory()), Setup.of(factory())
    if native.model is device.model:
        raise ParityError("The factory returned the same model twice; it must make a new one at each call.")
    with _users("The factory's two results differ"):
        device.model.load_state_dict(native.model.state_dict())
        device.optimizer.load_state_dict(copy.deepcopy(native.optimizer.state_dict()))
    with _users("The factory's batches fail"):
        batches = list(native.batches)
    if not batches:
        raise ParityError("The factory's batches are empty.")
    _switch_off_dropout(device.model)
    remarks = [*_switch_off_dropout(native.model), *_incomparable_buffers(native.model, replicas)]
    native.model.train()
    with _users(
        "The factory's batches do not fit the model. They may be (x, y), a tuple of all arguments of a model without a "
        "loss_fn, or a mapping of keyword arguments"
    ):
        how = ModelCall.of(native.model, native.loss_fn, batches[0])
        pairs = [how.split(batch) for batch in batches]
    _refuse_random(native.model, how, pairs[0][0])
    count = geometry.micro_batches
    endless = itertools.cycle(pairs)
    updates = [[next(endless) for _ in range(count)] for _ in range(steps)]
    expected = _run_natively(native, how, updates, replicas)
    found = _run_on_device(device, how, updates, config, replicas)
    numbered = enumerate(zip(expected, found), start=1)
    differences = (each for step, both in numbered for each in _differences(step, *both, half, tolerance))
    return ParityReport(tuple(differences), steps, count, tuple(remarks))


# Micro-batches of one update: the inputs and the targets of each.
Update = Sequence[Tuple[Any, Any]]


def _run_natively(setup: Setup, how: ModelCall, updates: Sequence[Update], replicas: int) -> Iterator[Results]:
    buffers = dict(setup.model.named_buffers())
    # Every replica has buffers of its own, as on the device.
    own = [{name: buffer.clone() for name, buffer in buffers.items()} for _ in range(replicas)]
    for update in updates:
        setup.optimizer.zero_grad()
        outputs: Dict[str, List[torch.Tensor]] = {}
        losses = []
        for position, (x, y) in enumerate(update):
            for name, buffer in buffers.items():
                # Consecutive micro-batches go to one replica after the other.
                buffer.data.copy_(own[position % replicas][name])
            with _natively():
                with LayerOutputs(setup.model) as layers:
                    prediction = how.call(setup.model, x)
                loss = find_loss(prediction) if setup.loss_fn is None else setup.loss_fn(prediction, y)
                (loss / len(update)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach().reshape(()))
            own[position % replicas] = {name: buffer.detach().clone() for name, buffer in buffers.items()}
            for name, tensor in layers.outputs.items():
                outputs.setdefault(name, []).append(tensor)
        with _natively():
            setup.optimizer.step()
        joined = {name: join_tensors(tensors) for name, tensors in outputs.items()}
        yield _results(setup.model, joined, layers.names, torch.stack(losses).mean(), replicas)


def _run_on_device(
    setup: Setup, how: ModelCall, updates: Sequence[Update], config: IPUConfig, replicas: int
) -> List[Results]:
    try:
        return _train_on_device(setup, how, updates, config, replicas)
    except backend.poptorch().Error:
        # A gradient that the device's loss does not depend on, and the host's does, stops the compilation.
        names = _gradients_on_device(setup, how, updates, config, replicas)
    return _train_on_device(setup, how, updates, config, replicas, names)


def _gradients_on_device(
    setup: Setup, how: ModelCall, updates: Sequence[Update], config: IPUConfig, replicas: int
) -> FrozenSet[str]:
    """Return the names of the parameters that have gradients in a program which returns none."""
    trainer = _trainer(setup, config, replicas, model_fn=lambda model, x: (how.call(model, x),))
    try:
        trainer.compile(join_rows(list(updates[0])))
        executor = trainer.ipu.trainers.required().program.executor
        found = [] if executor is None else executor.getTensorNames()
    finally:
        trainer.ipu.close()
    prefix = "Gradient___model."
    return frozenset(name[len(prefix) :] for name in found if name.startswith(prefix))


def _train_on_device(
    setup: Setup,
    how: ModelCall,
    updates: Sequence[Update],
    config: IPUConfig,
    replicas: int,
    gradients: Optional[FrozenSet[str]] = None,
) -> List[Results]:
    """Return the results of updates on the device, with the gradients of these parameters, or of all."""
    returned: List[str] = []
    names: Dict[str, str] = {}
    results: List[Results] = []

    def observed(model: nn.Module, x: Any) -> Any:
        with LayerOutputs(model) as layers:
            prediction = how.call(model, x)
        if backend.poptorch().isRunningOnIpu():  # a call on the host may follow the trace
            returned[:] = layers.outputs
            names.update(layers.names)
        return (prediction, *layers.outputs.values())

    with _users("The micro-batches of an update cannot be joined"):
        joined = [join_rows(list(update)) for update in updates]
    trainer = _trainer(
        setup, config, replicas, model_fn=observed, output_transform=lambda x, y, y_pred, loss: (y_pred[1:], loss)
    )
    # The comparison reports exceptions; Ignite would log them twice before.
    trainer.logger = logging.Logger(__name__, logging.CRITICAL)
    choose = None if gradients is None else lambda name, parameter: name in gradients
    Gradients(choose, allow_unused=True).attach(trainer)

    def keep(engine: Any) -> None:
        outputs, loss = engine.state.output
        results.append(_results(setup.model, dict(zip(returned, outputs)), names, loss, replicas))

    trainer.add_event_handler(Events.ITERATION_COMPLETED, keep)
    try:
        trainer.run(ReadyBatches(joined), max_epochs=1)
    finally:
        trainer.ipu.close()
    return results


def _trainer(setup: Setup, config: IPUConfig, replicas: int, **functions: Any) -> Any:
    """Return a trainer of a setup, whose replicas have buffers of their own."""
    options = own_options(config)
    if replicas > 1 and next(setup.model.buffers(), None) is not None:
        options.broadcastBuffers(False)
    return create_ipu_trainer(
        setup.model,
        setup.optimizer,
        _OnPrediction(setup.loss_fn),
        prepare_batch=lambda batch, device, non_blocking: batch,
        config=dataclasses.replace(config, options=options),
        **functions,
    )


class _OnPrediction(nn.Module):
    """The loss of the first part of an output, which the outputs of layers follow."""

    def __init__(self, loss_fn: Optional[Callable[[Any, Any], torch.Tensor]]) -> None:
        super().__init__()
        self.loss_fn = loss_fn

    def forward(self, output: Any, y: Any) -> torch.Tensor:
        return find_loss(output[0]) if self.loss_fn is None else self.loss_fn(output[0], y)


def _results(
    model: nn.Module, outputs: Mapping[str, torch.Tensor], names: Mapping[str, str], loss: torch.Tensor, replicas: int
) -> Results:
    """Return the results of an update, with copies of gradients and weights as they are on the host."""
    parameters = dict(model.named_parameters())
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point() and replicas == 1}
    gradients = {name: p.grad for name, p in parameters.items() if p.requires_grad and p.grad is not None}
    return {
        "output": {name: outputs[first] for name, first in names.items()},
        "loss": {"the batch": loss},
        "gradient": {name: gradient.detach().clone() for name, gradient in gradients.items()},
        "weight": {name: tensor.detach().clone() for name, tensor in {**parameters, **buffers}.items()},
    }


def _differences(
    step: int, native: Results, device: Results, half: bool, tolerance: Optional[float]
) -> Iterator[Difference]:
    for kind in _KINDS:
        names = list(native[kind])
        if kind == "gradient":
            names = _backwards(names, list(native["output"]))
        seen: Set[Tuple[int, int]] = set()
        for name in names:
            found = device[kind].get(name)
            if found is None:
                yield Difference(step, kind, name, "none", math.inf, 0.0, 0.0, "missing on the device")
                continue
            # A container that returns its last layer's output, on both sides, is that layer.
            pair = id(native[kind][name]), id(found)
            if pair not in seen:
                seen.add(pair)
                yield _difference(step, kind, name, native[kind][name], found, half, tolerance)


def _difference(
    step: int, kind: str, name: str, native: torch.Tensor, device: torch.Tensor, half: bool, tolerance: Optional[float]
) -> Difference:
    dtype = str(device.dtype).replace("torch.", "")
    if not device.dim() and native.numel() == 1:
        device = device.reshape(native.shape)
    elif device.shape != native.shape and native.dim() == device.dim() and not native.shape[0] % device.shape[0]:
        # A result that does not depend on the batch comes back once for all micro-batches.
        device = torch.cat([device] * (native.shape[0] // device.shape[0]))
    if device.shape != native.shape:
        shapes = f"of shape {tuple(device.shape)} instead of {tuple(native.shape)}"
        return Difference(step, kind, name, dtype, math.inf, 0.0, 0.0, shapes)
    relative, floor = TOLERANCES.get(torch.float16 if half else device.dtype, (0.0, 0.0))
    if tolerance is not None and device.dtype.is_floating_point:
        relative = tolerance
    mine, theirs = native.double(), device.double()
    both_nan = torch.isnan(mine) & torch.isnan(theirs)
    apart = torch.where(both_nan | (mine == theirs), 0.0, (mine - theirs).abs()).nan_to_num(
        nan=math.inf, posinf=math.inf
    )
    largest = apart.max().item() if apart.numel() else 0.0
    finite = mine[torch.isfinite(mine)].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    remark = ""
    if math.isinf(largest):
        remark = f"not finite where the native values are, which reach {scale:.3g}, or the other way round"
    elif not half and device.dtype.is_floating_point and device.dtype not in _KEPT.get(native.dtype, (native.dtype,)):
        largest, remark = math.inf, f"of another type than on the host, {str(native.dtype).replace('torch.', '')}"
    return Difference(step, kind, name, dtype, largest, relative * scale + floor, scale, remark)


def _backwards(names: Sequence[str], outputs: Sequence[str]) -> List[str]:
    """Return parameters in the order in which their gradients are known: the last layer that was called comes first."""
    last = {label.split("#")[0].split("[")[0]: position for position, label in enumerate(outputs)}

    def position(name: str) -> int:
        layer = name
        while "." in layer:
            layer = layer.rpartition(".")[0]
            if layer in last:
                return last[layer]
        return len(outputs)

    return sorted(reversed(names), key=position, reverse=True)


def _switch_off_dropout(model: nn.Module) -> List[str]:
    names = []
    for name, module in model.named_modules():
        if isinstance(module, DROPOUT):
            names += [name] if module.p else []
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):  # recurrent layers and attention
            setattr(module, "dropout", 0.0)  # noqa: B010
    return [f"Dropout is switched off on both sides: {', '.join(names)}."] if names else []


def _incomparable_buffers(model: nn.Module, replicas: int) -> List[str]:
    """Return the buffers of a model that the device keeps in another way."""
    counters = [name for name, buffer in model.named_buffers() if not buffer.is_floating_point()]
    remarks = [f"Integers are constants of a compiled program, left out: {', '.join(counters)}."] if counters else []
    if replicas > 1 and any(buffer.is_floating_point() for buffer in model.buffers()):
        remarks.append("Every replica has buffers of its own (broadcastBuffers is off): they are left out.")
    return remarks


def _refuse_random(model: nn.Module, how: ModelCall, x: Any) -> None:
    """Refuse a model whose outputs differ between two calls with different random states."""
    calls = []
    for seed in (0, 1):
        # A copy: batch normalisation counts calls in training mode.
        twin = copy.deepcopy(model)
        with torch.random.fork_rng(devices=[]), torch.no_grad(), LayerOutputs(twin) as layers:
            torch.manual_seed(seed)
            with _natively():
                how.call(twin, x)
        calls.append(layers.outputs)
    for name, output in calls[0].items():
        other = calls[1].get(name)
        if other is None or not torch.equal(output.nan_to_num(), other.nan_to_num()):
            raise ParityError(
                f"The output of {name} depends on random numbers, which the device draws differently, so it cannot "
                "be compared. Have the factory switch that off."
            )


def _natively() -> contextlib.AbstractContextManager[None]:
    return _users("The factory's model fails natively already")


@contextlib.contextmanager
def _users(what: str) -> Iterator[None]:
    """Mark exceptions of the user's code: they are no failures of the comparison."""
    try:
        yield
    except Exception as error:
        raise ParityError(f"{what}: {type(error).__name__}: {error}") from error
