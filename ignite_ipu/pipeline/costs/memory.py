"""Memory that the IPU of a stage needs."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, fields
from functools import lru_cache
from heapq import nlargest
from operator import itemgetter
from typing import Any, Callable, List, NamedTuple, Tuple

import numpy as np

from ignite_ipu.pipeline.costs.optimizer_state import OptimizerState
from ignite_ipu.pipeline.costs.partition import Index, Matrix, span_peaks, span_sums
from ignite_ipu.pipeline.costs.schedule import in_flight
from ignite_ipu.pipeline.profiling.profile import Profile, TensorSize


@dataclass(frozen=True)
class Strategy:
    """Choices that apply to the whole model.

    Args:
        pipelined: Pipelined execution; False for sharded.
        recompute: Keep only what enters a stage, and repeat its forward pass before its backward pass.
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


Bytes = Any  # a matrix, or a single number where a single span was asked for


class _Spans(NamedTuple):
    """Sums and peaks over every span of layers; see `Matrix`."""

    weights: Matrix
    gradients: Matrix
    elements: Matrix
    saved: Matrix
    working: Matrix
    inbound: Matrix
    entering: Matrix


@lru_cache(maxsize=8)
def _spans(profile: Profile) -> _Spans:
    layers, count = profile.layers, len(profile.layers)
    kept = np.zeros((count, count))
    for saver, layer in enumerate(layers):
        for tensor in layer.saved:
            kept[tensor.producer, saver] += tensor.bytes
    # saved[i, j]: made in layer i or later and saved before layer j; what entered the stage is in `inbound`.
    saved = np.zeros((count + 1, count + 1))
    saved[:count, 1:] = np.cumsum(np.cumsum(kept[::-1], axis=0)[::-1], axis=1)
    inbound = np.zeros((count + 1, count + 1))
    inbound[1:count, :] = np.asarray(profile.cut_bytes, dtype=np.float64)[:, None] if count > 1 else 0.0
    # To repeat its forward pass, the first stage needs what came from the host.
    entering = inbound.copy()
    entering[0, :] = profile.input_bytes
    return _Spans(
        weights=span_sums([layer.parameter_bytes + layer.buffer_bytes for layer in layers]),
        gradients=span_sums([layer.trainable_bytes for layer in layers]),
        elements=span_sums([layer.trainable_elements for layer in layers]),
        saved=saved,
        working=span_peaks([layer.activation_bytes for layer in layers]),
        inbound=inbound,
        entering=entering,
    )


class MemoryModel:
    """Estimates the memory of any span of layers at any place in a pipeline.

    The model, all of it an estimate: parameters and buffers once; one accumulator per trainable parameter; the
    optimizer's slots in float32 per trainable element, none if off chip, split between replicas if sharded; the tensors
    saved for backward and what enters the stage, once per micro-batch in flight, or with recomputation what enters the
    stage once per micro-batch in flight and the saved tensors of one micro-batch; and as working space the activations
    of the largest layer, twice when gradients of them are computed. Code, exchange buffers and padding are
    `Machine.usable_fraction`'s.
    """

    def __init__(self, profile: Profile, optimizer: OptimizerState, strategy: Strategy, replicas: int = 1) -> None:
        self.profile = profile
        self.optimizer = optimizer
        self.strategy = strategy
        self.replicas = replicas
        self._spans = _spans(profile)

    def under(self, strategy: Strategy) -> MemoryModel:
        """Return the model of the same profile under another strategy."""
        other = copy(self)
        other.strategy = strategy
        return other

    def _kept(self, stage: int, stages: int) -> int:
        return in_flight(stage, stages) if self.strategy.pipelined and stages > 1 else 1

    def _parts(self, stages: int, span: Index) -> Callable[[int], Tuple[Bytes, Bytes, Bytes, Bytes, Bytes]]:
        spans = self._spans
        weights, inbound, working = spans.weights[span], spans.inbound[span], spans.working[span]
        if not self.profile.training:
            none = 0.0 * weights
            return lambda stage: (weights, none, none, inbound, working)
        state = self.optimizer.bytes(1) * spans.elements[span]
        if self.strategy.offload_optimizer:
            state = 0.0 * state
        elif self.strategy.shard_optimizer:
            state = state / self.replicas
        gradients = float(self.optimizer.accumulator) * spans.gradients[span]
        # What is there once per micro-batch in flight, and once.
        each, once = spans.entering[span], spans.saved[span]  # type: Bytes, Bytes
        if not self.strategy.recompute:
            each, once = inbound + once, 0.0

        def parts(stage: int) -> Tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
            return weights, gradients, state, self._kept(stage, stages) * each + once, 2 * working

        return parts

    def totals(self, stages: int, spans: Index) -> Callable[[int], Matrix]:
        """Return what gives the bytes that a stage of `stages`, by its number, holds for these spans of layers."""
        parts = self._parts(stages, spans)

        def total(stage: int) -> Matrix:
            weights, gradients, state, activations, working = parts(stage)
            sums: Matrix = weights + gradients + state + activations + working
            return sums

        return total

    def stage(self, begin: int, end: int, stage: int, stages: int) -> StageMemory:
        """Return the same for one span, by purpose."""
        return StageMemory(*(float(part) for part in self._parts(stages, (begin, end))(stage)))

    def biggest(self, begin: int, end: int, stage: int, stages: int, count: int = 3) -> List[TensorSize]:
        """Return the largest tensors of one span, saved ones counted once per micro-batch that keeps them."""
        layers = self.profile.layers[begin:end]
        kept = 1 if self.strategy.recompute else self._kept(stage, stages)
        times = f" x {kept} micro-batches" if kept > 1 else ""
        sizes = [(p.bytes, "", p.name) for layer in layers for p in layer.parameters]
        sizes += [(kept * t.bytes, f"{layer.name}: ", f"{t.name}{times}") for layer in layers for t in layer.saved]
        return [TensorSize(of + name, size) for size, of, name in nlargest(count, sizes, key=itemgetter(0))]
