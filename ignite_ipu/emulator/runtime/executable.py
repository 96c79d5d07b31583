"""A compiled program on its device: one call's micro-batches, one after another, with the weights that they share."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler.batching import Batching, narrowed
from ignite_ipu.emulator.compiler.graph import Graph
from ignite_ipu.emulator.popdist.replicas import Replicas
from ignite_ipu.emulator.trace.isolation import Turn
from ignite_ipu.emulator.trace.number_formats import narrow
from ignite_ipu.emulator.values.replica_groups import ReplicaGroups
from ignite_ipu.torch_names import lists
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

Tensors = Sequence[torch.Tensor]
Results = Tuple[torch.Tensor, ...]


# PyTorch has one generator for the process: programs that draw from it run one after the other.
_TURN = Turn()


class RandomStream:
    """Random numbers of one program: the host's stream is as it was after every call.

    If calls are `alike`, every one draws if the first does, and none if it does not.
    """

    def __init__(self, seed: int, alike: bool) -> None:
        self.seed = seed
        self._alike = alike
        self._state = _start(seed)
        self.used: Optional[bool] = None  # unknown until the first call, and for good where calls differ

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        if self.used is False:
            yield
            return
        with _TURN.lock:
            host = torch.random.get_rng_state()
            torch.random.set_rng_state(self._state)
            try:
                yield
            finally:
                state = torch.random.get_rng_state()
                torch.random.set_rng_state(host)
        if self.used is None and self._alike:
            self.used = not torch.equal(state, self._state)
        self._state = state

    def read(self) -> List[int]:
        """Return the seed followed by the state, as integers."""
        return [self.seed, *self._state.tolist()]

    def write(self, values: Sequence[int]) -> None:
        """Continue from the result of `read`."""
        self.seed, *state = values
        self._state = torch.tensor(state, dtype=torch.uint8) if state else _start(self.seed)
        self.used = None


def _start(seed: int) -> torch.Tensor:
    return torch.Generator().manual_seed(seed).get_state()


class Executable:
    """One graph with the weights and buffers it works on: copies of the host's values.

    Weights that are `trainable` require gradients. The values of those with `groups`, which differ between groups of
    replicas, have one slice a group. Replicas that exchange values run `together`.
    """

    def __init__(
        self,
        graph: Graph,
        batching: Batching,
        weights: Mapping[str, torch.Tensor],
        trainable: Sequence[str],
        buffers: Mapping[str, torch.Tensor],
        groups: Mapping[str, ReplicaGroups],
        random: RandomStream,
        together: Optional[Replicas] = None,
    ) -> None:
        keep_freed_memory()
        self._together = together
        self.graph = graph
        self.batching = batching
        self.random = random
        self.grouped = groups
        self.weights = {name: _device_copy(self._from_host(name, value)) for name, value in weights.items()}
        self.trainable = [name for name in graph.weights if name in trainable]
        # The tensors that autograd knows a weight by, one or one for each group of replicas.
        self.leaves: Dict[str, List[torch.Tensor]] = {}
        for name in graph.weights:
            weight = self.weights[name]
            values = [weight[group].detach() for group in range(groups[name].count)] if name in groups else [weight]
            self.leaves[name] = [value.requires_grad_(name in trainable) for value in values]
        replicas = range(batching.replication_factor)
        shared = {name: _device_copy(value) for name, value in buffers.items()}
        self.buffers: List[Dict[str, torch.Tensor]] = [
            {
                name: _device_copy(value) if replica and name in graph.written_buffers else value
                for name, value in shared.items()
            }
            for replica in replicas
        ]
        # Arguments of the graph after a micro-batch of the inputs.
        self.arguments = [self._arguments_of(replica) for replica in replicas]
        self._written = [[own[name] for name in graph.written_buffers] for own in self.buffers]
        self._state_returned: Optional[Tuple[bool, ...]] = None
        writes = bool(graph.written_inputs or graph.written_buffers)
        self._is_one_pass = batching.micro_batches == 1 and not writes and together is None
        self._slots = [batching.slot_of(replica) for replica in replicas]

    def infer(self, inputs: Tensors) -> List[torch.Tensor]:
        """Run one call's micro-batches forward and return the graph's results, stacked by the output mode."""
        run, arguments = self.graph.run, self.arguments
        if self.random.used is False and self._is_one_pass:
            enabled = torch.is_grad_enabled()
            torch.set_grad_enabled(False)  # in a small model, the context manager takes as long as an operator
            try:
                return _copied(run(*inputs, *arguments[0]))
            finally:
                torch.set_grad_enabled(enabled)
        with torch.no_grad(), self.random.drawn():
            return self.loop(inputs, lambda batch, replica: run(*batch, *arguments[replica]), lambda: None)

    def loop(
        self, inputs: Tensors, run: Callable[[Results, int], Results], update: Callable[[], None], own: int = 0
    ) -> List[torch.Tensor]:
        """Run one call: for each device iteration all its micro-batches, each for one replica, and then one update.

        The last `own` results of a micro-batch are in contiguous memory of their own, and no more needed by `run`.
        """
        if self._is_one_pass:  # whose functions would be a large part of a small step
            results = run(tuple(inputs), 0)
            shared = len(results) - own
            found = _copied(results[:shared])
            update()
            return [*found, *results[shared:]]
        batching = self.batching
        micro_batches = batching.cut(inputs)
        steps = range(batching.gradient_accumulation)
        kept: List[List[Results]] = []
        position = 0
        for iteration in range(batching.device_iterations):
            for accumulation in steps:
                batches = micro_batches[position : position + batching.slots]
                passes = [
                    functools.partial(self._pass, run, own, replica, batches[slot])
                    for replica, slot in enumerate(self._slots)
                ]
                collected = [each() for each in passes] if self._together is None else self._together.run(passes)
                position += batching.slots
                if batching.keeps(iteration, accumulation):
                    kept.append(collected)
            update()
        outputs = len(kept[0][0])
        if own and len(kept) == len(kept[0]) == 1:
            (results,) = kept[0]
            return [*(batching.stack([[result]]) for result in results[: outputs - own]), *results[outputs - own :]]
        return [batching.stack([[results[index] for results in step] for step in kept]) for index in range(outputs)]

    def _pass(self, run: Callable[[Results, int], Results], own: int, replica: int, originals: Results) -> Results:
        """Run one replica's micro-batch, and return its results."""
        written_inputs, batch = self.graph.written_inputs, originals
        if written_inputs:
            batch = tuple(value.clone() if place in written_inputs else value for place, value in enumerate(batch))
        results = run(batch, replica)
        shared = len(results) - own
        results = (*self._kept(results[:shared]), *results[shared:]) if own else self._kept(results)
        _cut_from_history(self._written[replica])
        for place in written_inputs:
            originals[place].copy_(batch[place].detach())
        return results

    def forget_history(self) -> None:
        """Let buffers that a failed call wrote to be values alone."""
        for buffers in self._written:
            _cut_from_history(buffers)

    def host_weight(self, name: str) -> torch.Tensor:
        value = self.weights[name].detach()
        return self.grouped[name].to_host(value) if name in self.grouped else value

    def set_weights(self, values: Mapping[str, torch.Tensor]) -> None:
        """Overwrite weights with the host's values, which may be tensors of wrapped models."""
        with torch.no_grad(), DisableTorchFunctionSubclass():
            given = [self._from_host(name, value) for name, value in values.items()]
            _copy([self.weights[name] for name in values], given)

    def set_buffers(self, values: Mapping[str, torch.Tensor]) -> None:
        """Overwrite buffers with the host's values, likewise, in every replica."""
        with torch.no_grad(), DisableTorchFunctionSubclass():
            for own in self.buffers:
                _copy([own[name] for name in values], list(values.values()))

    def _kept(self, results: Results) -> Results:
        """Return one micro-batch's results; weights and buffers among them with their current values."""
        if self._state_returned is None:
            state = [*self.weights.values(), *(value for own in self.buffers for value in own.values())]
            memory = {value.untyped_storage().data_ptr() for value in state}
            self._state_returned = tuple(result.untyped_storage().data_ptr() in memory for result in results)
        return tuple(
            result.detach().clone() if state else result.detach()
            for result, state in zip(results, self._state_returned)
        )

    def _from_host(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return self.grouped[name].from_host(value) if name in self.grouped else value

    def _arguments_of(self, replica: int) -> Tuple[Any, ...]:
        own = {name: self.grouped[name].group_of(replica) for name in self.grouped}
        weights = [leaves[own.get(name, 0)] for name, leaves in self.leaves.items()]
        return (*weights, *(self.buffers[replica][name] for name in self.graph.buffers), *self.graph.constants)


def _copied(results: Results) -> List[torch.Tensor]:
    """Return results in contiguous memory of their own, in the types that the host sees."""
    return [narrowed(result.clone(memory_format=torch.contiguous_format)) for result in results]


def _copy(to: List[torch.Tensor], values: List[torch.Tensor]) -> None:
    if to:  # PyTorch takes no empty lists
        lists.copy_(to, values)


def _device_copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to(narrow(value.dtype), copy=True)


def _cut_from_history(buffers: Tensors) -> None:
    """Let buffers that forward wrote to be values alone, without the operators that they came from."""
    for buffer in buffers:
        if buffer.requires_grad:
            buffer.detach_()


# Gradients and activations are made anew in every step. glibc gives freed memory back to the operating system as soon
# as there is more than twice its largest block, and each page of it costs a fault when the next step writes to it: with
# a few megabytes of weights a quarter of the step's time, or none, as the blocks happen to lie.

_BLOCK = 31 << 20


@functools.lru_cache(maxsize=None)
def keep_freed_memory() -> None:
    """Let glibc keep up to 62 MiB of freed memory, as in any program that has freed a block of 31 MiB.

    Its limits follow the largest block, up to 32 MiB, that was freed so far (M_MMAP_THRESHOLD in mallopt(3)), unless
    the environment sets them. The block here is never written into, so it takes no memory. Other C libraries do not
    care.
    """
    torch.empty(_BLOCK, dtype=torch.uint8)
