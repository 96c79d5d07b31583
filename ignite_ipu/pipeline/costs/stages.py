"""Memory and time of a stage, any span of layers at any place in a pipeline, by strategy and optimizer."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from heapq import nlargest
from itertools import chain
from operator import itemgetter
from typing import Any, Callable, Dict, List, NamedTuple, Tuple, Union

import numpy as np
import numpy.typing as npt
from torch.optim import Optimizer

from ignite_ipu.errors import PlanError
from ignite_ipu.pipeline.costs.machine import Machine
from ignite_ipu.pipeline.costs.partition import Index, Matrix, SpanSums, span_peaks
from ignite_ipu.pipeline.costs.schedule import StageTime, in_flight
from ignite_ipu.pipeline.profiling.profile import Profile, TensorSize


@dataclass(frozen=True)
class Strategy:
    """Choices that apply to the whole model.

    Args:
        pipelined: Pipelined execution; False for sharded.
        recompute: Keep only the inputs of a stage, and repeat its forward pass before its backward pass.
        offload_optimizer: Keep optimizer state off chip, and stream it through during the update.
        shard_optimizer: Split optimizer state between the replicas (replicated tensor sharding).
    """

    pipelined: bool = True
    recompute: bool = False
    offload_optimizer: bool = False
    shard_optimizer: bool = False

    @property
    def name(self) -> str:
        words = ["pipelined" if self.pipelined else "sharded"]
        words += ["recompute"] * self.recompute
        words += ["optimizer off-chip"] * self.offload_optimizer
        words += ["optimizer sharded"] * self.shard_optimizer
        return ", ".join(words)


@dataclass(frozen=True)
class OptimizerState:
    """Tensors of the parameters' size that an optimizer keeps from one update to the next.

    Args:
        name: Name in tables.
        slots: Such tensors per trainable parameter, float32 each.
        accumulator: Whether gradients need a tensor of their own to accumulate in; PopTorch's SGD with
            `use_combined_accum=True` accumulates in its momentum.
    """

    name: str
    slots: int
    accumulator: bool = True

    def bytes(self, elements: int) -> int:
        """Return the bytes of state for `elements` trainable elements, 4 to each slot."""
        return 4 * self.slots * elements


_BY_NAME: Dict[str, int] = {"sgd": 0, "sgd-momentum": 1, "adam": 2, "adamw": 2, "lamb": 2, "rmsprop": 1}


def optimizer_state(optimizer: Union[Optimizer, OptimizerState, str]) -> OptimizerState:
    """Return the state that an optimizer keeps, for an instance from torch or PopTorch or for a name.

    Raises:
        PlanError: An optimizer that PopTorch does not have.
    """
    if isinstance(optimizer, OptimizerState):
        return optimizer
    if isinstance(optimizer, str):
        if optimizer.lower() not in _BY_NAME:
            raise PlanError(f"No optimizer is named {optimizer!r}; PopTorch's are: {', '.join(_BY_NAME)}.")
        return OptimizerState(optimizer.lower(), _BY_NAME[optimizer.lower()])
    kinds = [kind.__name__.lower() for kind in type(optimizer).__mro__ if kind.__name__.lower() in _BY_NAME]
    name = type(optimizer).__name__
    if not kinds:
        raise PlanError(f"{name} has no counterpart in PopTorch, which has: SGD, Adam, AdamW, LAMB and RMSprop.")
    groups = [*optimizer.param_groups, optimizer.defaults]
    if any(group.get("amsgrad") for group in groups):
        raise PlanError(f"{name} with amsgrad=True has no counterpart in PopTorch; leave amsgrad off.")
    momentum = any(_value(group.get("momentum", 0.0)) != 0 for group in groups)
    combined = bool(getattr(optimizer, "use_combined_accum", False))
    if kinds[0] == "sgd":
        return OptimizerState(name, int(momentum or combined), accumulator=not combined)
    if kinds[0] == "rmsprop":
        centered = any(bool(_value(group.get("centered", False))) for group in groups)
        return OptimizerState(name, 1 + int(momentum) + int(centered))
    return OptimizerState(name, _BY_NAME[kinds[0]])


def _value(attribute: object) -> object:
    """Return the value of an attribute that PopTorch may store as a pair of value and constness."""
    return attribute[0] if isinstance(attribute, tuple) else attribute


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one stage's IPU, by purpose."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    working: float = 0.0

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.working

    def __add__(self, other: StageMemory) -> StageMemory:
        return StageMemory(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


Bytes = Any  # a matrix, or a single number for a single span


_Vector = npt.NDArray[np.float64]


class _Spans(NamedTuple):
    """Sums and peaks over every span of layers, and the tensors that come in by the layer that a span begins with."""

    weights: SpanSums
    gradients: SpanSums
    elements: SpanSums
    saved: Matrix
    working: Matrix
    inbound: _Vector
    entering: _Vector


@lru_cache(maxsize=8)
def _spans(profile: Profile) -> _Spans:
    layers, count = profile.layers, len(profile.layers)
    kept = np.zeros((count, count))
    for saver, layer in enumerate(layers):
        for tensor in layer.saved:
            kept[tensor.producer, saver] += tensor.bytes
    # saved[i, j]: made in layer i or later and saved before layer j; inputs of the stage are in `inbound`.
    saved = np.zeros((count + 1, count + 1))
    saved[:count, 1:] = np.cumsum(np.cumsum(kept[::-1], axis=0)[::-1], axis=1)
    inbound = np.zeros(count + 1)
    inbound[1:count] = profile.cut_bytes
    # To repeat its forward pass, the first stage needs its inputs from the host.
    entering = inbound.copy()
    entering[0] = profile.input_bytes
    return _Spans(
        weights=SpanSums([layer.parameter_bytes + layer.buffer_bytes for layer in layers]),
        gradients=SpanSums([layer.trainable_bytes for layer in layers]),
        elements=SpanSums([layer.trainable_elements for layer in layers]),
        saved=saved,
        working=span_peaks([layer.activation_bytes for layer in layers]),
        inbound=inbound,
        entering=entering,
    )


class MemoryModel:
    """Estimates the memory of any span of layers at any place in a pipeline, by `docs/pipeline-model.md`."""

    def __init__(self, profile: Profile, optimizer: OptimizerState, strategy: Strategy, replicas: int = 1) -> None:
        self.profile, self.optimizer, self.strategy, self.replicas = profile, optimizer, strategy, replicas
        self._spans = _spans(profile)

    def _kept(self, stage: int, stages: int) -> int:
        return in_flight(stage, stages) if self.strategy.pipelined and stages > 1 else 1

    def _parts(self, span: Index) -> Tuple[Bytes, ...]:
        """Return weights, gradients, state, working space, and activations: once, and for a micro-batch in flight."""
        spans, strategy, begin = self._spans, self.strategy, span[0]
        weights, inbound, working = spans.weights[span], spans.inbound[begin], spans.working[span]
        none = 0.0 * weights
        if not self.profile.training:
            return weights, none, none, working, inbound, none
        shards = self.replicas if strategy.shard_optimizer else 1
        state = none if strategy.offload_optimizer else self.optimizer.bytes(1) * spans.elements[span] / shards
        gradients = float(self.optimizer.accumulator) * spans.gradients[span]
        saved = spans.saved[span]
        once, each = (saved, spans.entering[begin]) if strategy.recompute else (none, inbound + saved)
        return weights, gradients, state, 2 * working, once, each

    def totals(self, stages: int, spans: Index) -> Callable[[int, Any], Matrix]:
        """Return a function of a stage's number that gives its bytes for some rows of these spans of layers."""
        *fixed, each = self._parts(spans)
        held: Any = sum(fixed)
        return lambda stage, rows: held[rows] + self._kept(stage, stages) * each[rows]

    def stage(self, begin: int, end: int, stage: int, stages: int) -> StageMemory:
        """Return the same for one span, by purpose."""
        weights, gradients, state, working, once, each = map(float, self._parts((begin, end)))
        return StageMemory(weights, gradients, state, self._kept(stage, stages) * each + once, working)

    def biggest(self, begin: int, end: int, stage: int, stages: int, count: int = 3) -> List[TensorSize]:
        """Return the largest tensors of one span, saved ones counted once per micro-batch that keeps them."""
        layers = self.profile.layers[begin:end]
        kept = 1 if self.strategy.recompute else self._kept(stage, stages)
        times = f" x {kept} micro-batches" if kept > 1 else ""
        weights = ((p.bytes, p.name, "") for layer in layers for p in layer.parameters)
        saved = ((kept * t.bytes, layer.name, t.name) for layer in layers for t in layer.saved)
        found = nlargest(count, chain(weights, saved), key=itemgetter(0))
        return [TensorSize(f"{of}: {name}{times}" if name else of, size) for size, of, name in found]


class TimeModel:
    """Estimates the seconds of any span of layers for one micro-batch, by `docs/pipeline-model.md`."""

    def __init__(
        self, profile: Profile, machine: Machine, recompute: bool, ipus_per_replica: int = 1, replicas: int = 1
    ) -> None:
        self._passes, self._recomputes = _passes(profile, machine), recompute and profile.training
        self._layers = len(profile.layers)
        self._from_host = machine.host_seconds(profile.input_bytes, ipus_per_replica, replicas)
        outputs = 0 if profile.training else profile.output_bytes
        self._to_host = machine.host_seconds(outputs, ipus_per_replica, replicas) if outputs else 0.0

    def totals(self, spans: Index) -> Matrix:
        """Return the seconds of spans for one micro-batch, all passes together."""
        forward, backward, recompute = self._of(spans)
        return forward + backward + recompute

    def least(self, spans: Index) -> Matrix:
        """Return a bound below the seconds of spans that have the same begin as these, and an end not before theirs."""
        passes, (_, ends) = self._passes, spans
        forward, backward = passes.forward(spans), passes.backward(spans)
        least: Matrix = forward + backward + self._recompute(spans) - passes.leaving[ends]
        return least

    def stage(self, begin: int, end: int) -> StageTime:
        """Return the same for one span, by pass."""
        return StageTime(*map(float, self._of((begin, end))))

    def _of(self, spans: Index) -> Tuple[Matrix, Matrix, Matrix]:
        begins, ends = spans
        host = self._from_host * (begins == 0)
        forward = self._passes.forward(spans) + host + self._to_host * (ends == self._layers)
        return forward, self._passes.backward(spans), self._recompute(spans)

    def _recompute(self, spans: Index) -> Any:
        return self._passes.compute[spans] if self._recomputes else 0.0


class _Passes(NamedTuple):
    """Seconds of spans of layers without the host's part.

    Attributes:
        compute: Those of the arithmetic of a forward pass.
        compute_back: Those of the arithmetic of a backward pass.
        cuts: Those of the tensors that go forward over the cut before each layer.
        back: Those of the gradients that go back over it.
    """

    compute: SpanSums
    compute_back: SpanSums
    cuts: _Vector
    back: _Vector

    @property
    def leaving(self) -> _Vector:
        """Seconds of all tensors that cross behind each layer."""
        return self.cuts + self.back

    def forward(self, spans: Index) -> Any:
        """Return the seconds of a forward pass."""
        begins, ends = spans
        return self.compute[spans] + (self.cuts[begins] + self.cuts[ends])

    def backward(self, spans: Index) -> Any:
        """Return the seconds of a backward pass, which is 0 in inference."""
        begins, ends = spans
        return self.compute_back[spans] + (self.back[begins] + self.back[ends])


@lru_cache(maxsize=8)
def _passes(profile: Profile, machine: Machine) -> _Passes:
    layers = profile.layers
    compute = SpanSums([machine.compute_seconds(x.forward_flops, x.traffic, x.half) for x in layers])
    cuts = np.asarray([0.0, *map(machine.link_seconds, profile.cut_bytes), 0.0])
    if not profile.training:
        return _Passes(compute, SpanSums([0.0] * len(layers)), cuts, np.zeros_like(cuts))
    back = np.asarray([0.0, *map(machine.link_seconds, profile.gradient_cut_bytes), 0.0])
    compute_back = SpanSums([machine.compute_seconds(x.backward_flops, 2 * x.traffic, x.half) for x in layers])
    return _Passes(compute, compute_back, cuts, back)
