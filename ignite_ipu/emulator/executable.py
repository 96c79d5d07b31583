"""A compiled program on its device: micro-batches forward and, in training, backward, accumulate, reduce, update."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Tuple

import torch

from ignite_ipu.emulator.batching import Batching
from ignite_ipu.emulator.enums import CommGroupType, ReductionType, VariableRetrievalMode
from ignite_ipu.emulator.graph import Graph

Tensors = Sequence[torch.Tensor]


class Optimizer(Protocol):
    """The part of the optimizer that lives on the device."""

    def update(self, grads: Sequence[Optional[torch.Tensor]]) -> None:
        """Update the weights in place from their reduced, unscaled gradients."""


class ReplicaGroups:
    """How the replicas share a parameter that has one value for each group of them."""

    def __init__(self, kind: CommGroupType, shards: int, retrieval: VariableRetrievalMode, replicas: int) -> None:
        self.kind, self.shards, self.retrieval, self.replicas = kind, shards, retrieval, replicas
        self.count = {
            CommGroupType.All: 1,
            CommGroupType.NoGrouping: replicas,
        }.get(kind, replicas // max(shards, 1))

    def group_of(self, replica: int) -> int:
        """Return the group whose value `replica` uses."""
        if self.kind is CommGroupType.All:
            return 0
        if self.kind is CommGroupType.NoGrouping:
            return replica
        return replica // self.shards if self.kind is CommGroupType.Consecutive else replica % self.count


class RandomState:
    """The device's own random stream: the host's is as it was after every call."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._state = torch.Generator().manual_seed(seed).get_state()
        self.used: Optional[bool] = None  # unknown until the first call

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """Draw from the device's stream in the `with` block."""
        if self.used is False:
            yield
            return
        host = torch.random.get_rng_state()
        torch.random.set_rng_state(self._state)
        try:
            yield
        finally:
            state = torch.random.get_rng_state()
            torch.random.set_rng_state(host)
        if self.used is None:
            self.used = not torch.equal(state, self._state)
        self._state = state

    def read(self) -> List[int]:
        """Return the seed followed by the state, as integers."""
        return [self.seed, *self._state.tolist()]

    def write(self, values: Sequence[int]) -> None:
        """Continue from what `read` returned."""
        self.seed = int(values[0])
        if len(values) > 1:
            self._state = torch.tensor(list(values[1:]), dtype=torch.uint8)
        else:
            self._state = torch.Generator().manual_seed(self.seed).get_state()
        self.used = None


class Executable:
    """One graph with the weights and buffers it works on.

    Args:
        graph: What runs on every micro-batch.
        batching: How the inputs are cut and the outputs stacked.
        weights: Host values of the graph's weights, by name. The device gets its own copy.
        trainable: Names of the weights that gradients are computed for.
        buffers: Host values of the graph's buffers, by name.
        replica_groups: The weights that differ between groups of replicas: their values have one slice a group.
        random: The device's random stream.
    """

    def __init__(
        self,
        graph: Graph,
        batching: Batching,
        weights: Mapping[str, torch.Tensor],
        trainable: Sequence[str],
        buffers: Mapping[str, torch.Tensor],
        replica_groups: Mapping[str, ReplicaGroups],
        random: RandomState,
    ) -> None:
        self.graph = graph
        self.batching = batching
        self.random = random
        self.weights = {name: _device_copy(value) for name, value in weights.items()}
        self._groups = {name: replica_groups[name] for name in graph.weights if name in replica_groups}
        self._leaves = {name: self._leaf(name, name in trainable) for name in graph.weights}
        self.trainable = [name for name in graph.weights if name in trainable]
        replicas = batching.replication_factor
        shared = {name: _device_copy(value) for name, value in buffers.items()}
        self.buffers: List[Dict[str, torch.Tensor]] = [
            {
                name: _device_copy(value) if replica and name in graph.written_buffers else value
                for name, value in shared.items()
            }
            for replica in range(replicas)
        ]
        self._arguments = [self._arguments_of(replica) for replica in range(replicas)]
        self._written = [[own[name] for name in graph.written_buffers] for own in self.buffers]
        self._slots = [batching.slot_of(replica) for replica in range(replicas)]

    def infer(self, inputs: Tensors) -> List[torch.Tensor]:
        """Run one call's micro-batches forward and return what the graph returns, stacked as the output mode says."""
        with torch.no_grad(), self.random.stream():
            outputs = self._loop(inputs, lambda results, replica: None, lambda iteration: None)
        return outputs

    def train(self, inputs: Tensors, step: TrainingStep) -> List[torch.Tensor]:
        """Run one call: for each device iteration, all its micro-batches and then one update."""
        with torch.enable_grad(), self.random.stream():
            return self._loop(inputs, step.backward, step.update)

    def leaves(self, name: str) -> List[torch.Tensor]:
        """Return the tensors that autograd knows a weight by: one, or one for each group of replicas."""
        leaf = self._leaves[name]
        return leaf if isinstance(leaf, list) else [leaf]

    def host_weight(self, name: str) -> torch.Tensor:
        """Return a weight as the host receives it."""
        value = self.weights[name].detach()
        groups = self._groups.get(name)
        if groups is None or groups.retrieval is VariableRetrievalMode.OnePerGroup:
            return value
        return torch.stack([value[groups.group_of(replica)] for replica in range(groups.replicas)])

    def set_buffers(self, values: Mapping[str, torch.Tensor]) -> None:
        """Overwrite buffers with the host's values, in every replica."""
        with torch.no_grad():
            for own in self.buffers:
                for name, value in values.items():
                    own[name].copy_(value)

    def _loop(
        self,
        inputs: Tensors,
        backward: Callable[[Tuple[torch.Tensor, ...], int], None],
        update: Callable[[int], None],
    ) -> List[torch.Tensor]:
        batching, run, written_inputs = self.batching, self.graph.run, self.graph.written_inputs
        micro_batches = batching.cut(inputs)
        steps = range(batching.gradient_accumulation)
        kept: List[List[Tuple[torch.Tensor, ...]]] = []
        position = 0
        for iteration in range(batching.device_iterations):
            for accumulation in steps:
                collected: List[Tuple[torch.Tensor, ...]] = []
                for replica, slot in enumerate(self._slots):
                    batch = micro_batches[position + slot]
                    if written_inputs:
                        originals = batch
                        batch = tuple(
                            value.clone() if place in written_inputs else value for place, value in enumerate(batch)
                        )
                    results = run(*batch, *self._arguments[replica])
                    backward(results, replica)
                    collected.append(tuple(result.detach() for result in results))
                    for buffer in self._written[replica]:
                        if buffer.requires_grad:
                            buffer.detach_()
                    if written_inputs:
                        for place in written_inputs:
                            originals[place].copy_(batch[place].detach())
                position += batching.slots
                if batching.keeps(iteration, accumulation):
                    kept.append(collected)
            update(iteration)
        outputs = len(kept[0][0])
        return [batching.stack([[results[index] for results in step] for step in kept]) for index in range(outputs)]

    def _leaf(self, name: str, trainable: bool) -> Any:
        groups = self._groups.get(name)
        value = self.weights[name]
        if groups is None:
            return value.requires_grad_(trainable)
        return [value[group].detach().requires_grad_(trainable) for group in range(groups.count)]

    def _arguments_of(self, replica: int) -> Tuple[torch.Tensor, ...]:
        weights = [
            leaf[self._groups[name].group_of(replica)] if isinstance(leaf, list) else leaf
            for name, leaf in self._leaves.items()
        ]
        buffers = [self.buffers[replica][name] for name in self.graph.buffers]
        return (*weights, *buffers, *self.graph.constants)


class TrainingStep:
    """Gradients of one executable, and the update they end in.

    Args:
        optimizer: The optimizer on the device.
        reduction: Whether gradients are averaged or added up over accumulation steps and replicas.
        loss_scaling: Factor on the loss gradient, divided out of the weight gradients again.
        replicas: Replicas of all processes that the gradient is reduced over.
        reduce: Adds up gradients over the other processes in place; None when this is the only one.
        check: Looks for values that no exception-free arithmetic makes; called with a description and tensors.
    """

    def __init__(
        self,
        executable: Executable,
        optimizer: Optimizer,
        reduction: ReductionType,
        loss_scaling: Callable[[], float],
        replicas: int,
        reduce: Optional[Callable[[List[torch.Tensor]], None]],
        check: Optional[Callable[[str, Tensors], None]] = None,
    ) -> None:
        self._check = check
        self._executable = executable
        self._optimizer = optimizer
        self._loss_scaling = loss_scaling
        self._reduce = reduce
        batching, graph = executable.batching, executable.graph
        assert graph.loss is not None
        self._loss = graph.loss
        count = batching.gradient_accumulation * replicas if reduction is ReductionType.Mean else 1
        self._share = 1.0 / count
        self._share_left = 1.0
        self._names = executable.trainable
        self._grouped = any(len(executable.leaves(name)) > 1 for name in self._names)
        self._leaves = tuple(leaf for name in self._names for leaf in executable.leaves(name))
        self._used: Optional[Tuple[bool, ...]] = None
        self._sums: List[torch.Tensor] = []
        self.gradients: Dict[str, torch.Tensor] = {}
        self.keep_gradients = False

    def backward(self, results: Tuple[torch.Tensor, ...], replica: int) -> None:
        """Add one micro-batch's gradients to the accumulated ones."""
        loss = results[self._loss]
        if not loss.requires_grad:
            return
        # The share is folded into the loss gradient, where it costs nothing; half precision would lose bits there.
        # Where gradients are shown, they are those of the micro-batch alone.
        folded = loss.dtype is torch.float32 and not self._executable.graph.watches_gradients
        self._share_left = 1.0 if folded else self._share
        scale = self._loss_scaling() * (self._share / self._share_left)
        start = torch.full_like(loss, scale) if scale != 1.0 else torch.ones_like(loss)
        if self._used is None:
            found = torch.autograd.grad([loss], self._leaves, [start], allow_unused=True)
            if self._grouped:
                # Which group's slice gets a gradient depends on the replica: all of them count as used.
                found = tuple(torch.zeros_like(w) if g is None else g for g, w in zip(found, self._leaves))
            self._used = tuple(gradient is not None for gradient in found)
            self._leaves = tuple(itertools.compress(self._leaves, self._used))
            gradients = tuple(itertools.compress(found, self._used))
        elif self._grouped:
            found = torch.autograd.grad([loss], self._leaves, [start], allow_unused=True)
            gradients = tuple(torch.zeros_like(w) if g is None else g for g, w in zip(found, self._leaves))
        else:
            gradients = torch.autograd.grad([loss], self._leaves, [start])
        if self._check is not None:
            self._check("A weight gradient", gradients)
        if not self._sums:
            self._sums = list(gradients)
        elif gradients:
            torch._foreach_add_(self._sums, gradients)

    def update(self, iteration: int) -> None:
        """Reduce the accumulated gradients, take one optimizer step, and start accumulating afresh."""
        sums, self._sums = self._sums, []
        if not sums:
            return
        with torch.no_grad():
            if self._reduce is not None:
                self._reduce(sums)
            factor = self._share_left / self._loss_scaling()
            if factor != 1.0:
                torch._foreach_mul_(sums, factor)
            self._optimizer.update(self._by_weight(sums))
            if self._check is not None:
                self._check("An updated weight", self._leaves)
            if self.keep_gradients:
                self.gradients = dict(zip(self._names, self._by_weight(sums)))

    def _by_weight(self, sums: List[torch.Tensor]) -> Sequence[Optional[torch.Tensor]]:
        assert self._used is not None
        if all(self._used) and not self._grouped:
            return sums
        remaining = iter(sums)
        if not self._grouped:
            return [next(remaining) if used else None for used in self._used]
        gradients: List[Optional[torch.Tensor]] = []
        for name in self._names:
            parts = [next(remaining) for _ in self._executable.leaves(name)]
            gradients.append(torch.stack(parts) if len(parts) > 1 else parts[0])
        return gradients


def _device_copy(value: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if value.dtype is torch.float64 else value.dtype
    return value.detach().to(dtype, copy=True)
