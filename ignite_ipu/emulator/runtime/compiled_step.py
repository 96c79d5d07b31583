"""A training step compiled as a whole: forward, backward, accumulation and update, with the weights changed in place.

With one micro-batch an update all of it is one function. With several there are two: one for a micro-batch, which adds
its gradients to the sums, and one for the update. The numbers that the host decides between updates (learning rates,
counts of steps, loss scaling) are a vector among their arguments, so that changing them compiles nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler import saved_values
from ignite_ipu.emulator.compiler.graph import Graph
from ignite_ipu.emulator.compiler.inductor import Run, Untraceable, check_kernels, forward_alone, own_memory, whole
from ignite_ipu.emulator.optim.device.numbers import Calls, Changed, Recording, Replay
from ignite_ipu.emulator.optim.device.optimizer import DeviceOptimizer, Layout
from ignite_ipu.emulator.runtime.training_step import TrainingStep

_NUMBERS_PER_BUCKET = 32
_MOST_VARIANTS = 8
Tensors = Sequence[torch.Tensor]


class _Update(NamedTuple):
    """A compiled function that ends in an update, and the operators of that update."""

    run: Run
    calls: Calls


@dataclasses.dataclass
class Functions:
    """What has been compiled for one program, however often it is loaded.

    Attributes:
        name: What the log calls the program.
        used: For each trainable weight, whether the loss depends on it; None before the first trace.
        folded: Whether the share of a mean is in the loss gradient.
        copies: Whether autograd saves copies, because forward writes over what the backward pass needs.
        micro_batch: Forward, backward and addition to the sums.
        updates: What ends in an update, by the layout of the optimizer; more than one where numbers became zero,
            or stopped to be, so that the update has other operators.
        in_parts: The graph to run instead where nothing can be compiled as a whole.
    """

    name: str
    used: Optional[Tuple[bool, ...]] = None
    folded: bool = False
    copies: bool = False
    micro_batch: Optional[Run] = None
    updates: Dict[Any, List[_Update]] = dataclasses.field(default_factory=dict)
    in_parts: Optional[Graph] = None


class CompiledStep(TrainingStep):
    """A `TrainingStep` that is compiled when it first runs: as a whole or, where that is impossible, forward in parts.

    Args:
        functions: What was compiled for the program before; what this step compiles is added.

    The others are those of `TrainingStep`.
    """

    def __init__(self, functions: Functions, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        executable = self._executable
        self._functions = functions
        self._graph = executable.graph
        self._first_weight = len(self._graph.inputs)
        self._place = {name: place for place, name in enumerate(self._graph.weights)}
        self._alone = executable.batching.gradient_accumulation * len(executable.arguments) == 1 and not self._reduce
        self._prepared = self._is_running = False
        self._placeholders: List[torch.Tensor] = []
        self._layout: Optional[Layout] = None
        self._state: Tensors = ()
        self._numbers: List[float] = []
        self._vector = torch.zeros(0)

    def run(self, batch: Tensors, replica: int) -> Tuple[torch.Tensor, ...]:
        """Run one micro-batch, and the update after it if it is the update's only one."""
        executable = self._executable
        if executable.graph is not self._graph or self._functions.in_parts is not None:
            # Compiled in parts, or somebody watches the operators of this run one by one.
            return self._run_in_parts(batch, replica)
        arguments = (*batch, *executable.arguments[replica])
        try:
            if not self._prepared:
                self._prepare(arguments)
            return self._run_alone(arguments) if self._alone else self._run_and_add(arguments)
        except Untraceable as reason:
            self._functions.in_parts = forward_alone(self._graph, self._functions.name, reason)
            return self._run_in_parts(batch, replica)

    def update(self, iteration: int) -> None:
        """Update the weights from the sums of gradients, unless the micro-batch's function has done it."""
        if not self._is_running:
            super().update(iteration)
            return
        self._is_running = False
        sums, self._sums, self._added = self._sums, [], 0
        if self._alone:
            return
        if self._reduce is not None:
            self._reduce(sums)
        try:
            self._finish(sums)
        except Untraceable as reason:
            self._functions.in_parts = forward_alone(self._graph, self._functions.name, reason)
            self._advance(sums)

    def _run_in_parts(self, batch: Tensors, replica: int) -> Tuple[torch.Tensor, ...]:
        executable, parts = self._executable, self._functions.in_parts
        if parts is not None and executable.graph is self._graph:
            executable.graph = self._graph = parts
        return super().run(batch, replica)

    # -- what is run ----------------------------------------------------------------------------------------------

    def _run_alone(self, arguments: Tensors) -> Tuple[torch.Tensor, ...]:
        function = self._function_of_update(arguments, self._compile_alone)
        self._is_running = True
        with torch.no_grad():
            return function(self._vector, *arguments, *self._state)

    def _run_and_add(self, arguments: Tensors) -> Tuple[torch.Tensor, ...]:
        functions = self._functions
        if not self._sums:
            self._sums = [torch.empty_like(leaf, dtype=torch.float32, requires_grad=False) for leaf in self._leaves]
        vector = torch.tensor([self._scale(), 1.0 if self._added else 0.0])
        if functions.micro_batch is None:
            functions.micro_batch = self._compile_micro_batch((vector, *arguments, *self._sums))
        self._is_running = True
        self._added += 1
        with torch.no_grad():
            return functions.micro_batch(vector, *arguments, *self._sums)

    def _finish(self, sums: Tensors) -> None:
        function = self._function_of_update(sums, self._compile_update)
        with torch.no_grad():
            function(self._vector, *sums, *self._state)

    def _function_of_update(self, arguments: Tensors, compile: Any) -> Run:
        """Return what `compile` makes for the present layout, and have its numbers in the vector."""
        optimizer = self._device_optimizer()
        with torch.no_grad():
            layout = optimizer.layout(self._by_weight(self._placeholders))
        if layout is not self._layout:
            given = set(map(id, arguments))
            self._layout, self._state = layout, [value for value in layout.tensors if id(value) not in given]
        length = 8 + _NUMBERS_PER_BUCKET * len(layout.key)
        for known in self._functions.updates.setdefault(layout.key, []):
            numbers = self._replayed(known.calls, layout)
            if numbers is not None:
                run = known.run
                break
        else:
            run, numbers = self._compiled_update(compile, arguments, layout, length)
        if numbers != self._numbers or len(self._vector) != length:
            self._numbers = numbers
            self._vector = torch.tensor([*numbers, *[0.0] * (length - len(numbers))])
        return run

    def _replayed(self, calls: Calls, layout: Layout) -> Optional[List[float]]:
        """Return the numbers of this update; None if it is another one than was compiled."""
        before = layout.counts()
        replay = Replay(calls)
        try:
            with replay:
                self._advance(self._placeholders)
            replay.finish()
        except Changed:
            layout.restore(before)
            return None
        return [self._scale(), *replay.numbers]

    def _advance(self, sums: Sequence[torch.Tensor]) -> None:
        factor = (1.0 if self._folded else self._share) / self.optimizer.loss_scaling
        if factor != 1.0:
            torch._foreach_mul_(list(sums), factor)
        self.optimizer.update(self._by_weight(list(sums)))

    def _scale(self) -> float:
        return self.optimizer.loss_scaling * (self._share if self._folded else 1.0)

    # -- compiling ------------------------------------------------------------------------------------------------

    def _prepare(self, arguments: Tensors) -> None:
        """Find out what the gradients will be, unless that cannot be compiled."""
        functions = self._functions
        if functions.used is None:
            self._check_settings()
            check_kernels(self._graph)
            functions.used, functions.folded = self._looked_at(arguments)
        self._used, self._folded = functions.used, functions.folded
        self._leaves = tuple(itertools.compress(self._leaves, self._used))
        self._placeholders = [torch.zeros(1)] * len(self._leaves)
        self._prepared = True

    def _check_settings(self) -> None:
        reasons = {
            "parameters differ between replicas": self._grouped,
            "gradients accumulate in float16": self._accum_type is not torch.float32,
            "gradients are anchored": self.keep_gradients,
            "gradients are printed": self._graph.watches_gradients,
            "the loss scaling is automatic": self._scaling is not None,
        }
        for reason, holds in reasons.items():
            if holds:
                raise Untraceable(reason)

    def _looked_at(self, arguments: Tensors) -> Tuple[Tuple[bool, ...], bool]:
        """Return which weights get a gradient, and whether the share of a mean is folded into it."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        try:
            mode = FakeTensorMode()
            shapes = [mode.from_tensor(value.detach()) for value in arguments]
            with mode, torch.random.fork_rng(devices=[]):
                results, found = self._backward_of_shapes(shapes)
        except Untraceable:
            raise
        except Exception as error:  # whatever the operators of a model say of tensors without values
            raise Untraceable(f"{type(error).__name__}: {error}") from error
        folded = self._foldable and results[self._loss].dtype is torch.float32
        return tuple(gradient is not None for gradient in found), folded

    def _backward_of_shapes(self, shapes: Tensors) -> Tuple[Tensors, Sequence[Optional[torch.Tensor]]]:
        """Go backward through tensors without values, and find out whether forward writes over what that needs."""
        try:
            return self._backward_of(shapes, 1.0)
        except RuntimeError as error:
            if not saved_values.were_overwritten(error):
                raise
        self._functions.copies = True
        return self._backward_of(shapes, 1.0)

    def _backward_of(self, arguments: Tensors, scale: Any) -> Tuple[Tensors, Sequence[Optional[torch.Tensor]]]:
        """Return what the graph returns and the gradient of each trainable weight, in operators to be traced."""
        values, leaves = list(arguments), []
        for name in self._names:
            place = self._first_weight + self._place[name]
            values[place] = values[place].detach().requires_grad_()
            leaves.append(values[place])
        with torch.enable_grad():
            with saved_values.copied() if self._functions.copies else contextlib.nullcontext():
                results = self._graph.run(*values)
            loss = results[self._loss]
            if not loss.requires_grad:
                raise Untraceable("the loss depends on no trainable weight")
            found = torch.autograd.grad([loss], leaves, [torch.ones_like(loss) * scale], allow_unused=True)
        return own_memory(results, arguments), found

    def _gradients_of(self, arguments: Tensors, scale: Any) -> Tuple[Tensors, List[torch.Tensor]]:
        results, found = self._backward_of(arguments, scale)
        # Copies, which cost nothing in compiled code: autograd may give two weights the same memory.
        return results, [gradient.to(torch.float32, copy=True) for gradient in found if gradient is not None]

    def _compile_micro_batch(self, arguments: Tensors) -> Run:
        count = len(self._leaves)

        def add(vector: torch.Tensor, *given: torch.Tensor) -> Tensors:
            sums = given[-count:] if count else ()
            results, gradients = self._gradients_of(given[: len(given) - count], vector[0])
            for total, gradient in zip(sums, gradients):
                # What the sums hold at first is nothing, and no number.
                total.copy_(torch.where(vector[1] > 0, total + gradient, gradient))
            return results

        return whole(add, arguments, f"{self._functions.name} (micro-batch)")

    def _compile_alone(self, recording: Any, given: Tensors, vector: torch.Tensor) -> Tensors:
        results, gradients = self._gradients_of(given, vector[0])
        with recording:
            self._advance(gradients)
        return results

    def _compile_update(self, recording: Any, given: Tensors, vector: torch.Tensor) -> Tensors:
        gradients = [value.clone() for value in given]
        with recording:
            self._advance(gradients)
        return ()

    def _compiled_update(self, body: Any, arguments: Tensors, layout: Layout, length: int) -> Tuple[Run, List[float]]:
        """Compile `body` for the present layout; return it with the numbers of the update that tracing it counts as."""
        known = self._functions.updates[layout.key]
        if len(known) == _MOST_VARIANTS:
            raise Untraceable("the optimizer's update is another one again and again")
        before = layout.counts()
        recordings: List[Recording] = []
        real = (*arguments, *self._state)

        def function(vector: torch.Tensor, *given: torch.Tensor) -> Tensors:
            stand_ins = {id(value): stand_in for value, stand_in in zip(real, given)}
            recordings.append(Recording(stand_ins, vector, [self._scale()]))
            results: Tensors = body(recordings[-1], given[: len(arguments)], vector)
            return results

        try:
            run = whole(function, (torch.zeros(length), *real), self._functions.name)
        except Untraceable:
            layout.restore(before)
            raise
        known.append(_Update(run, recordings[-1].calls))
        return run, recordings[-1].numbers

    def _device_optimizer(self) -> DeviceOptimizer:
        assert isinstance(self.optimizer, DeviceOptimizer)
        return self.optimizer
