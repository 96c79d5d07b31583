"""Backward, accumulate, reduce, update: the additional work of training, by PyTorch's operators or compiled."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler.inductor import Compiled, own_memory
from ignite_ipu.emulator.compiler.saved_values import SavedValues, copied
from ignite_ipu.emulator.compiler.stochastic_rounding import store_stochastically
from ignite_ipu.emulator.enums import MeanReductionStrategy, ReductionType
from ignite_ipu.emulator.optim.device import foreach
from ignite_ipu.emulator.optim.device.optimizer import DeviceOptimizer
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.popdist.communication import Communicator, connected
from ignite_ipu.emulator.runtime import loss_scaling
from ignite_ipu.emulator.runtime.accumulation import Accumulation
from ignite_ipu.emulator.runtime.executable import Executable
from ignite_ipu.emulator.runtime.returned_gradients import ReturnedGradients
from ignite_ipu.emulator.trace.capture import Precision
from ignite_ipu.emulator.trace.number_formats import check_finite
from ignite_ipu.torch_names import lists
from ignite_ipu.torch_names.lists import flatten_tensors, unflatten_tensors

Reduce = Callable[[List[torch.Tensor]], None]
Tensors = Sequence[torch.Tensor]


class GradientStep:
    """Gradients of one executable, and the update they end in.

    Gradients are kept in `accum_type`. In float32 a running mean and a sum divided at the end differ by rounding only,
    so the division is folded into the loss gradient. In float16 each is computed literally, over the micro-batches of
    all replicas in turn. `reduce` adds gradients up over the other processes in place, if there are any.

    Gradients of `anchored` weights are returned with each micro-batch's results. They are of that micro-batch and
    replica alone, in the weight's type, multiplied by the loss scaling.
    """

    def __init__(
        self,
        executable: Executable,
        optimizer: DeviceOptimizer,
        accum_type: torch.dtype,
        options: Options,
        precision: Precision,
        reduce: Optional[Reduce],
        anchored: Sequence[str] = (),
    ) -> None:
        self._executable = executable
        self.optimizer = optimizer
        self._reduce = reduce
        self._scaling = loss_scaling.from_options(options)
        self._check = check_finite if precision.floating_point_exceptions else None
        batching, graph = executable.batching, executable.graph
        assert graph.loss is not None
        self._loss = graph.loss
        self._saved = SavedValues(graph)
        self._names = executable.trainable
        self._grouped = any(name in executable.grouped for name in self._names)
        self._leaves = tuple(leaf for name in self._names for leaf in executable.leaves[name])
        half = any(leaf.dtype is torch.float16 for leaf in self._leaves)
        training = options.Training
        mean = ReductionType(training.accumulation_and_replication_reduction_type) is ReductionType.Mean
        replicas = batching.replication_factor * options.Distributed.numProcesses
        self._share = 1.0 / (batching.gradient_accumulation * replicas) if mean else 1.0
        strategy = MeanReductionStrategy(training.meanAccumulationAndReplicationReductionStrategy)
        running = mean and strategy is MeanReductionStrategy.Running and accum_type is torch.float16
        # Folding the share into the loss gradient costs nothing; half precision would lose bits there. Where gradients
        # are shown or returned, they are those of the micro-batch alone.
        full = graph.loss_type is torch.float32 and accum_type is torch.float32 and not half
        self._folded = full and not graph.watches_gradients and not anchored
        self._returned = ReturnedGradients(anchored, executable)
        store = store_for(precision)
        self._sums = Accumulation(accum_type, running, not self._folded, store, self._grouped)
        # The other gradients are added to the first ones, which are scaled in the end.
        self._alone = batching.micro_batches == 1 and reduce is None
        self._used: Optional[Tuple[bool, ...]] = None
        self.loss_scaling = optimizer.loss_scaling  # of the last update

    def train(self, inputs: Tensors) -> List[torch.Tensor]:
        """Run one call and return the graph's results, stacked by the output mode.

        A call that fails in between has made the updates before that, and leaves no gradient behind.
        """
        random = self._executable.random
        drawn = contextlib.nullcontext() if random.used is False else random.drawn()
        try:
            with torch.no_grad(), drawn:
                own = len(self._returned.names) if self._owns_returned else 0
                return self._executable.loop(inputs, self.run, self.update, own)
        except BaseException:
            self._sums.clear()
            if self._scaling is not None:
                self._scaling.forget()
            self._executable.forget_history()
            raise

    def run(self, batch: Tensors, replica: int) -> Tuple[torch.Tensor, ...]:
        """Run one micro-batch forward and backward, and return the graph's results."""
        executable = self._executable
        arguments = (*batch, *executable.arguments[replica])
        with torch.enable_grad():
            results = self._saved.run(executable.graph.run, arguments, lambda results: self.backward(results, replica))
        return (*results, *self._returned.latest) if self._returned.names else results

    def backward(self, results: Tuple[torch.Tensor, ...], replica: int) -> None:
        """Add one micro-batch's gradients to the accumulated ones."""
        loss = results[self._loss]
        if loss.requires_grad:
            self._add(self._gradients(loss, torch.full_like(loss, self._scale)), replica)
        else:
            self._returned.take_zeros()

    @property
    def _scale(self) -> float:
        return self.optimizer.loss_scaling * (self._share if self._folded else 1.0)

    def _add(self, gradients: Tuple[torch.Tensor, ...], replica: int) -> None:
        """Add one micro-batch's gradients, of the weights that the loss depends on."""
        if self._returned.names:
            assert self._used is not None
            self._returned.take(gradients, self._used, replica, self._owns_returned)
        if self._check is not None:
            self._check("A weight gradient", gradients)
        self._sums.add(gradients)

    def update(self) -> None:
        """Reduce the accumulated gradients, take one optimizer step, and start accumulating afresh."""
        sums, count = self._sums.take()
        if not sums:
            return
        if self._reduce is not None:
            self._reduce(sums)
        share = 1.0 if self._folded else self._share * count
        factor = share / self.optimizer.loss_scaling
        if factor != 1.0:
            lists.mul_(sums, factor)
        self.optimizer.update(self._by_weight(sums))
        if self._check is not None:
            self._check("An updated weight", self._leaves)
        self.loss_scaling = self.optimizer.loss_scaling
        if self._scaling is not None:
            self.optimizer.adapt_loss_scaling(self._scaling.after_update(self.optimizer.loss_scaling, self._reduce))

    def _gradients(self, loss: torch.Tensor, start: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        if self._scaling is None:
            return self._gradients_of(loss, start)
        with loss_scaling.GradientsTracked(self._scaling):
            return self._gradients_of(loss, start)

    def _gradients_of(self, loss: torch.Tensor, start: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        if self._used is not None and not self._grouped:
            return torch.autograd.grad([loss], self._leaves, [start])
        # Replicas that run together may all come here before the first of them knows.
        is_known = self._used is not None
        found: Sequence[Optional[torch.Tensor]] = torch.autograd.grad([loss], self._leaves, [start], allow_unused=True)
        if self._used is None:
            # The loss depends on a parameter if it does on one group's value.
            remaining = iter(found)
            own = [[next(remaining) is not None for _ in self._executable.leaves[name]] for name in self._names]
            self._used = tuple(used for each in own for used in [any(each)] * len(each))
            self._leaves = tuple(itertools.compress(self._leaves, self._used))
        if not is_known:
            found = tuple(itertools.compress(found, self._used))
        # A replica reaches the value of its own group only.
        return tuple(torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, self._leaves))

    @property
    def _owns_returned(self) -> bool:
        return self._alone and self.optimizer.loss_scaling == 1

    def _by_weight(self, sums: List[torch.Tensor]) -> Sequence[Optional[torch.Tensor]]:
        assert self._used is not None
        if all(self._used) and not self._grouped:
            return sums
        used, remaining = iter(self._used), iter(sums)
        gradients: List[Optional[torch.Tensor]] = []
        for name in self._names:
            parts = [next(remaining) for _ in self._executable.leaves[name] if next(used)]
            if parts and name in self._executable.grouped:
                gradients.append(torch.stack(parts))
            else:
                gradients.append(parts[0] if parts else None)
        return gradients


class CompiledStep(GradientStep):
    """A `GradientStep` that switches to compiled code once it is ready; `compiled` keeps it for its program.

    The compiled function takes the factor on the loss gradient and the graph's arguments, and returns the graph's
    results, followed by the gradients.
    """

    def __init__(self, compiled: Compiled, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._compiled = compiled
        self._graph = graph = self._executable.graph
        places = {name: len(graph.inputs) + place for place, name in enumerate(graph.weights)}
        self._places = [places[name] for name in self._names]
        self._factor: Optional[Tuple[float, torch.Tensor]] = None  # on the loss gradient, as it was and in a tensor

    def run(self, batch: Tensors, replica: int) -> Tuple[torch.Tensor, ...]:
        executable, compiled = self._executable, self._compiled
        if executable.graph is not self._graph:  # the operators of this run are observed
            return super().run(batch, replica)
        arguments = (*batch, *executable.arguments[replica])
        if not compiled.is_begun:
            ways = [functools.partial(self._forward_and_backward, copies) for copies in (False, True)]
            compiled.begin(self._graph, ways, (torch.ones(1), *arguments))
        if compiled.run is None:
            return super().run(batch, replica)
        if self._used is None:
            self._used = compiled.used
            self._leaves = tuple(itertools.compress(self._leaves, self._used))
        if self._factor is None or self._factor[0] != self._scale:
            self._factor = self._scale, torch.tensor([self._scale])
        results = compiled.run(self._factor[1], *arguments)
        count = len(results) - len(self._leaves)
        self._add(results[count:], replica)
        return (*results[:count], *self._returned.latest) if self._returned.names else results[:count]

    def _forward_and_backward(self, copies: bool, scale: torch.Tensor, *arguments: torch.Tensor) -> List[torch.Tensor]:
        """Return the graph's results and the gradients, by traceable operators.

        The weights that have gradients are noted. Autograd saves `copies` of tensors that forward overwrites and the
        backward pass needs.
        """
        if self._grouped:
            raise NotImplementedError("parameters differ between replicas")
        values = list(arguments)
        for place in self._places:
            values[place] = values[place].detach().requires_grad_()
        with torch.enable_grad():
            with copied() if copies else contextlib.nullcontext():
                results = self._graph.run(*values)
            loss = results[self._loss]
            if not loss.requires_grad:
                raise NotImplementedError("the loss depends on no trainable weight")
            start = torch.ones_like(loss) * scale[0].to(loss.dtype)
            leaves = [values[place] for place in self._places]
            found: Sequence[Optional[torch.Tensor]] = torch.autograd.grad([loss], leaves, [start], allow_unused=True)
        self._compiled.used = tuple(gradient is not None for gradient in found)
        return own_memory([*results, *(gradient for gradient in found if gradient is not None)], arguments)


def store_for(precision: Precision) -> foreach.Store:
    """Return the rounding of float32 values to float16 by the options."""
    return store_stochastically if precision.stochastic_rounding else foreach.store_nearest


def reducer(processes: int) -> Optional[Reduce]:
    """Return the in-place sum of tensors over `processes` processes; None for a single one.

    Raises:
        Error: That number of processes is not connected.
    """
    return None if processes == 1 else functools.partial(_all_reduce, connected(processes))


def _all_reduce(processes: Communicator, tensors: List[torch.Tensor]) -> None:
    flat = flatten_tensors(tensors)
    processes.all_reduce(flat)
    for tensor, reduced in zip(tensors, unflatten_tensors(flat, tensors)):
        tensor.copy_(reduced)
