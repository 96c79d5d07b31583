"""Cost of capturing a step: an accelerate loop against the same loop written for PopTorch, and alone.

The limit is the same loop over the same calls, which records two results in PyTorch's way, by a class of tensors with
`__torch_function__`, and makes the device call of the step. A loop of PyTorch's calls cannot leave these calls out: the
results that they return, and whether gradients are complete, decide what the next one does. The device's loss is
marked, as PopTorch needs it for a loss of any formula. The loop checks the things that change without notice and that
no loop may miss: the called functions and the shapes and types of their arguments, by which the program is chosen; the
Python values of the model's code and its modes; writes into the batch; hyper-parameters; the parameters in the
optimizer's groups; and gradients on the host. It notes the line of each call, which later errors name. Nothing in it is
general: it knows its only model, optimizer and loss.
"""

from __future__ import annotations

import operator
import statistics
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple
from unittest import mock

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

from ignite_ipu import IPUAccelerator, backend
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.tensors.raw import gradient_of
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, make_wrapper_subclass, version_of
from tests.benchmarks.measures import Measure, ratio_of_fresh, seconds
from tests.benchmarks.models import Batch, WithMarkedLoss, batches, executor_of, perceptron, poptorch_loop, width_for

ROWS = 64


def measures() -> Iterator[Measure]:
    """Yield the rows of the table."""
    for milliseconds, aim in ((1, 1.10), (5, 1.03), (16, 1.01)):
        yield against_poptorch(f"captured loop / hand-written PopTorch, step of {milliseconds} ms", milliseconds, aim)
    for depth, aim in ((2, 0.15), (100, 0.01)):
        yield beside_eager(depth, aim)


def more() -> Iterator[Measure]:
    """Yield a row that takes longer."""
    yield beside_eager(1000, 0.001)


def against_poptorch(name: str, milliseconds: float, aim: float) -> Measure:
    """Measure a captured loop on batches that are there."""
    width, steps = width_for(milliseconds * 1e-3, ROWS), max(7, int(100 / milliseconds))
    data = batches(steps, ROWS, width)

    def make() -> Tuple[Callable[[], None], ...]:
        return captured_loop(width, 3, data), poptorch_loop(perceptron(width), data), least_loop(width, 3, data)

    return ratio_of_fresh(name, make, aim, steps)


def beside_eager(depth: int, aim: float) -> Measure:
    """Measure an iteration whose device call takes no time, and the same loop in PyTorch, the median of three."""
    rounds = max(20, 300 // depth)
    found = [(overhead(captured_loop, depth), eager(depth, rounds)) for _ in range(3)]
    ours, theirs = sorted(found, key=lambda pair: pair[0] / pair[1])[1]
    least = min(overhead(least_loop, depth) for _ in range(3)) / theirs
    name = f"a captured iteration outside of the device call / the eager iteration, {depth} layers"
    return Measure(name, ours / theirs, aim, "", f"{1e6 * ours:.0f} / {1e6 * theirs:.0f} µs", least)


def captured_loop(width: int, depth: int, data: List[Batch]) -> Callable[[], None]:
    """Return a pass of an accelerate loop over batches, on the device."""
    return accelerate_loop(IPUAccelerator, width, depth, data)


def accelerate_loop(make: Callable[[], Accelerator], width: int, depth: int, data: List[Batch]) -> Callable[[], None]:
    """Return a pass of an accelerate loop over batches."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = make()
    model = perceptron(width, depth)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9))
    model.train()

    def run() -> None:
        for x, y in data:
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()

    return run


class Recorded(torch.Tensor):
    """A result that has not been computed: the least that capturing has to record.

    Attributes:
        call: The function, its arguments, and their versions.
        line: The line that called it.
        value: The result, once it has been computed.
        step: Makes the device call of the pending losses.
    """

    call: Tuple[Any, ...]
    line: Line
    value: torch.Tensor
    step: LeastStep

    @classmethod
    def of(cls, size: Tuple[int, ...], call: Tuple[Any, ...], step: LeastStep) -> Recorded:
        made: Recorded = make_wrapper_subclass(cls, size, dtype=torch.float32, device=torch.device("cpu"))
        made.call, made.line, made.step = call, current_line(), step
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output, y = args
        step: LeastStep = output.step
        step.check_call((func, torch.is_grad_enabled(), y.shape, y.stride(), y.dtype, y.requires_grad, kwargs))
        return cls.of((), (output, y, version_of(y)), step)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError

    def backward(self, **kwargs: Any) -> None:  # type: ignore[override]
        self.step.pending.append((self, current_line()))

    def item(self) -> Any:
        return self.value.item()


class LeastStep:
    """The model, the optimizer and the accelerator of the least loop."""

    def __init__(self, module: torch.nn.Module, example: Batch) -> None:
        self.executor: Any = executor_of(module, WithMarkedLoss)
        self.executor(*example)  # which changes the classes of modules and parameters
        self.unchanged = Unchanged(module)
        self.pending: List[Tuple[Recorded, Line]] = []
        self.used: Optional[Line] = None  # where an update has used gradients
        self.held = [list(group["params"]) for group in self.unchanged.groups]
        self.state = GradientState()
        self._calls: List[Any] = []
        self._next = 0

    def check_call(self, call: Tuple[Any, ...]) -> None:
        """Refuse a call that is not the next one of those in the first iteration."""
        if self._next == len(self._calls):
            self._calls.append(call)
        assert call == self._calls[self._next]
        self._next += 1

    def model(self, x: torch.Tensor) -> Recorded:
        self.unchanged.check_model()
        self._next = 0
        self.check_call((torch.is_grad_enabled(), x.shape, x.stride(), x.dtype, x.requires_grad))
        return Recorded.of((len(x), 10), (x, version_of(x)), self)

    def backward(self, loss: Recorded, **kwargs: Any) -> None:
        if self.state.num_steps == 1:
            loss.backward(**kwargs)

    def step(self, closure: Any = None) -> None:
        if self.state.sync_gradients and closure is None:
            ((loss, _),) = self.pending
            output, y, version = loss.call
            x, before = output.call
            self.unchanged.check_step((x, y), [before, version])
            for group, held in zip(self.unchanged.groups, self.held):
                assert all(map(operator.is_, group["params"], held))
            loss.value = self.executor(x, y)
            self.used = current_line()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.state.sync_gradients and set_to_none:
            self.pending = []


class Unchanged:
    """Checks of the least loop: everything is as it was when this was made."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.groups = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9).param_groups
        self.state = PythonState(model)
        self.seen = self.state.training(), self.state.values()
        self.get = operator.itemgetter("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
        self.sizes, self.values = self.now()
        self.parameters = list(model.parameters())[:32]

    def now(self) -> Tuple[List[int], List[Any]]:
        return [len(group["params"]) for group in self.groups], [self.get(group) for group in self.groups]

    def check_model(self) -> None:
        state = self.state
        assert state.complete and state.training() is self.seen[0] and state.values() is self.seen[1]

    def check_step(self, tensors: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
        with DisableTorchFunctionSubclass():
            assert not [each for each in self.parameters if gradient_of(each) is not None]
        assert self.now() == (self.sizes, self.values) and list(map(version_of, tensors)) == versions


def least_loop(width: int, depth: int, data: List[Batch]) -> Callable[[], None]:
    """Return a pass of the same loop that records two results, and makes the device call of its step from them."""
    least = LeastStep(perceptron(width, depth), data[0])

    def run() -> None:
        for x, y in data:
            loss: Any = F.cross_entropy(least.model(x), y)
            least.backward(loss)
            least.step()
            least.zero_grad()
            loss.item()

    return run


def overhead(make: Callable[[int, int, List[Batch]], Callable[[], None]], depth: int) -> float:
    """Return the median seconds of one iteration of a loop on the device whose device call takes no time.

    An iteration is short: Python has made its code fast after some tens of them.
    """
    loop = make(8, depth, batches(1, ROWS, 8))
    for _ in range(12):  # the first updates are watched
        loop()
    loss = torch.zeros(())

    def returned(executor: Any, *leaves: torch.Tensor) -> torch.Tensor:
        return loss  # the records of a Mock would count

    with mock.patch.object(backend.poptorch().PoplarExecutor, "__call__", returned):
        return statistics.median(seconds(loop) for _ in range(300))


def eager(depth: int, rounds: int) -> float:
    """Return the median seconds of the same iteration in PyTorch."""
    loop = accelerate_loop(lambda: Accelerator(cpu=True), 8, depth, batches(1, ROWS, 8))
    loop()
    return statistics.median(seconds(loop) for _ in range(rounds))
