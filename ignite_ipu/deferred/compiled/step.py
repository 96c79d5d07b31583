"""The modules that PopTorch compiles: a captured training step, and a call of the model for evaluation."""

from __future__ import annotations

import contextlib
import functools
from typing import (
    Any,
    Callable,
    Container,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
)

import torch
from torch import nn

from ignite_ipu import backend
from ignite_ipu.deferred.compiled.host_calls import ForwardGuard, GivenArguments, HeldBuffers
from ignite_ipu.deferred.compiled.update import CompiledUpdate
from ignite_ipu.deferred.graph.operations import name_of
from ignite_ipu.deferred.graph.returned import Returned, returned_in
from ignite_ipu.deferred.graph.step_graph import result_of
from ignite_ipu.deferred.graph.structure import Structure, flatten, is_flat, leaves_in, unflatten
from ignite_ipu.deferred.tensor.returned_views import in_place_of_results
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.forward.assigned_buffers import assignments_written
from ignite_ipu.program.forward.eager import EAGER
from ignite_ipu.program.forward.half_precision import in_half
from ignite_ipu.program.forward.integer_buffers import integer_buffers
from ignite_ipu.program.forward.left_behind import LeftBehind, Place, called_beside, leave_all, put
from ignite_ipu.program.guarded_trace import guarded
from ignite_ipu.program.guards.python_state import named_by
from ignite_ipu.program.step import BatchStep
from ignite_ipu.program.tensors.iterators import with_items
from ignite_ipu.program.tensors.raw import named_tensors
from ignite_ipu.program.tensors.strides import with_strides
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.program.written_buffers import WrittenBuffers
from ignite_ipu.torch_names.modules import all_named_buffers


class Stages(Protocol):
    """Stages of a program over several IPUs, which open as it is traced: a `Route`."""

    def begin(self, leaving: Callable[[], Any] = ...) -> None: ...
    def begin_loss(self) -> None: ...
    def is_here(self, weights: Iterable[str]) -> bool: ...
    def gather(self, weights: Dict[str, torch.Tensor]) -> Dict[str, torch.Tensor]: ...


class ReadyStep(BatchStep):
    """A module whose inputs come ready for the device, and which leaves the user's modules in the modes they are in."""

    def __init__(self, model: nn.Module, half: bool, returns_writes: bool = True) -> None:
        super().__init__(model, ("inputs",), _no_call, _no_call, half, returns_writes)
        # Tensors that calls store for other code are results here.
        self.computed.is_searched = True

    @property
    def called(self) -> Sequence[str]:
        """Paths of the parts of the model that are called."""
        return ("",)

    def arguments(self, *parts: Any, micro_batches: int) -> List[Any]:
        return list(parts[0])

    def computes_like(self, other: BatchStep) -> bool:
        """Return whether another step compiles to the same program: none does."""
        return other is self

    def train(self, mode: bool = True) -> ReadyStep:
        return self


class CapturedStep(ReadyStep):
    """The module compiled for a captured update: it returns the loss, and the values that are wanted on the host."""

    is_tried = True

    def __init__(
        self, model: nn.Module, update: CompiledUpdate, half: bool = False, differentiates: bool = False
    ) -> None:
        super().__init__(model, half, returns_writes=False)
        self.update = update
        self.written = _WrittenByCalls(update, model, self.host_weights, returned=False)
        # The gradient of an input is that of a parameter of zeros which is added to it.
        self.offsets = nn.ParameterList()
        for position in update.graph.differentiated if differentiates else ():
            shape, dtype = update.graph.inputs[position]
            self.offsets.append(nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, *leaves: Any) -> Any:
        """Return `(loss, *outputs)` for the inputs of a micro-batch; where there are no outputs, the loss itself."""
        with EAGER, guarded(self, training=True), in_half(self.half_products):
            results, total = self.compute(leaves)
        # PopTorch adds up the gradients of all processes, and DistributedDataParallel takes their mean.
        loss = self.marked_loss(total if self.update.processes == 1 else total / self.update.processes)
        if not self.update.outputs:
            return loss
        return (loss, *[results[operation][result] for operation, result in self.update.outputs])

    @property
    def called(self) -> Sequence[str]:
        """Paths of the parts of the model that are called."""
        return tuple(dict.fromkeys(step.part for step in self.update.graph.steps if step.function is None))

    def run_with(self, model: nn.Module, *leaves: Any) -> Any:
        """Return the loss of a micro-batch with another model, without marks."""
        with EAGER:
            return CapturedStep(model, self.update).compute(leaves)[1]

    def compute(self, leaves: Sequence[Any]) -> Tuple[List[List[Any]], Any]:
        """Return the results of each operation for the inputs of a micro-batch, and its share of the loss."""
        update, graph = self.update, self.update.graph
        shapes = [*graph.inputs, *[((), torch.float32)] * len(update.variable)]
        inputs = [leaf if shape else leaf.reshape(()) for leaf, (shape, _) in zip(leaves, shapes)]
        for position, offset in zip(graph.differentiated, self.offsets):
            inputs[position] = inputs[position] + offset
        numbers: List[Any] = list(update.numbers)
        for position, number in zip(sorted(update.variable), inputs[len(graph.inputs) :]):
            numbers[position] = number
        results = _Computation(self.model, update, inputs, numbers).run(self.stages)
        total: Any = None
        for operation, result in graph.losses:
            loss = results[operation][result]
            loss = loss.reshape(()) if loss.dim() else loss
            total = loss if total is None else total + loss
        return results, total / update.split.pieces if update.split.averages else total

    def loss_of(self, output: Any) -> torch.Tensor:
        """Return the loss of `(loss, *outputs)`, or the loss alone."""
        loss: torch.Tensor = output[0] if self.update.outputs else output
        return loss


class _WrittenByCalls(WrittenBuffers):
    """The buffers that the calls of a captured update write, by its graph."""

    def __init__(self, update: CompiledUpdate, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = update.graph.steps

    def updates_statistics(self, step: nn.Module) -> bool:
        """Return whether calls or functions write buffers, whatever the modes of the modules are now."""
        return any(each.writes for each in self._steps)

    def integers(self, step: nn.Module, leaves: Sequence[Any], micro_batches: int) -> List[str]:
        """Return the names of the buffers of integers that the calls write."""
        written = {".".join(filter(None, ("model", each.part, name))) for each in self._steps for name in each.writes}
        return [name for name in integer_buffers(step) if name in written] if written else []


class _Computation:
    """Computation of a graph for one micro-batch: the results of each operation, None until they are known."""

    def __init__(self, model: nn.Module, update: CompiledUpdate, inputs: Sequence[Any], numbers: Sequence[Any]) -> None:
        self._model, self._steps, self._inputs = model, update.graph.steps, inputs
        # A tied tensor may be known by any of its names.
        self._weights: Dict[str, torch.Tensor] = dict(model.named_parameters(remove_duplicate=False))
        self._weights.update(model.named_buffers(remove_duplicate=False))
        remaining = iter(numbers)
        self._numbers = [[next(remaining) for source in step.leaves if source is None] for step in self._steps]
        self._results: List[Optional[List[Any]]] = [None] * len(self._steps)
        calls = [number for number, step in enumerate(self._steps) if step.function is None]
        self._modes = dict(zip(calls, update.modes.calls))

    def run(self, routes: Sequence[Stages]) -> List[List[Any]]:
        """Return the results of all operations, each computed on its IPU."""
        for route in routes:
            route.begin(functools.partial(self._compute_here, route, self._of_weights()))
        calls = [number for number, step in enumerate(self._steps) if step.function is None]
        for number, step in enumerate(self._steps):
            for route in routes:
                if number == calls[-1] + 1 if calls else number == 0:
                    route.begin_loss()
            if self._results[number] is None:
                read: Mapping[str, torch.Tensor] = self._weights
                names = [source for source in step.leaves if isinstance(source, str)]
                for route in routes if names and step.function is not None else ():
                    read = route.gather({name: self._weights[name] for name in names})
                self._compute(number, read)
        return [results for results in self._results if results is not None]

    def _of_weights(self) -> Dict[int, FrozenSet[str]]:
        """Return the operations that depend on weights and on no call of a model, with these weights."""
        found: Dict[int, FrozenSet[str]] = {}
        for number, step in enumerate(self._steps):
            before = {result_of(source)[0] for source in step.leaves if isinstance(source, int) and source >= 0}
            if step.function is not None and before <= found.keys():
                own = frozenset(source for source in step.leaves if isinstance(source, str))
                found[number] = own.union(*(found[each] for each in before))
        return {number: weights for number, weights in found.items() if weights}

    def _compute_here(self, route: Stages, of_weights: Mapping[int, FrozenSet[str]]) -> None:
        """Compute the values that depend on weights of the current IPU alone, so that it need not be visited again."""
        for number, weights in of_weights.items():
            if self._results[number] is None and route.is_here(weights):
                self._compute(number, self._weights)

    def _compute(self, number: int, weights: Mapping[str, torch.Tensor]) -> List[Any]:
        step, numbers = self._steps[number], iter(self._numbers[number])
        found: List[Any] = []
        for source in step.leaves:
            if source is None:
                found.append(next(numbers))
            elif isinstance(source, str):
                found.append(weights[source])
            elif source < 0:
                found.append(self._inputs[~source])
            else:
                operation, result = result_of(source)
                results = self._results[operation]
                if results is None:  # of tensors of the host, for an operation that is computed ahead
                    results = self._compute(operation, weights)
                found.append(results[result])
        args, kwargs = unflatten(step.structure, found)
        if step.function is None:
            model, modes = self._model.get_submodule(step.part), self._modes.get(number)
            with contextlib.nullcontext() if modes is None else modes.of.at(modes), assignments_written(model):
                output = called_beside(step.left, functools.partial(model, *args, **kwargs))
        else:
            output = _called(step.function, args, kwargs, step.line)
        tensors = leaves_in(output)
        self._results[number] = results = tensors if step.grad else [tensor.detach() for tensor in tensors]
        return results


class _HostResults:
    """The tensors that a call on the host has returned last, in size, strides and type; a device narrows 64 bits.

    Attributes:
        returned: Those that are parameters, buffers or arguments, or views of them, with their positions.
    """

    shapes: Sequence[Tuple[Tuple[int, ...], Tuple[int, ...], torch.dtype]] = ()
    returned: Sequence[Tuple[int, Returned]] = ()

    def like(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the device's results in the types and the order in memory of the host's."""
        if len(self.shapes) != len(tensors):
            return tensors
        pairs = zip(tensors, self.shapes)
        return [with_strides(tensor.to(dtype), size, strides) for tensor, (size, strides, dtype) in pairs]


class _WrittenByCall(WrittenBuffers):
    """The buffers that a call writes; after a call on the host the trace finds its output and its stored tensors."""

    def __init__(self, found: Tuple[List[Any], ...], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._found = found

    def find(self, step: nn.Module, leaves: Sequence[Any], micro_batches: int) -> Sequence[str]:
        names = super().find(step, leaves, micro_batches)
        for each in self._found:
            each.clear()
        return names


class CalledStep(ReadyStep):
    """The module compiled to evaluate: one call of the model, with tensors of these shapes among its arguments.

    `words` are the names of attributes that other code reads, in which it may store tensors; `grows` is True if each
    call adds to lists.

    Attributes:
        left: The places where it stores tensors, or something instead of tensors.
        unsure: Other places of which it is unknown whether it stores something there.
    """

    leaves_behind = True

    def __init__(
        self,
        model: nn.Module,
        structure: Structure,
        shapes: Sequence[Tuple[int, ...]],
        half: bool = False,
        words: Container[str] = (),
        grows: bool = False,
    ) -> None:
        super().__init__(model, half)
        self._words, self._grows = words, grows
        self._structure = structure
        self._shapes = tuple(shapes)
        # The structure of the returned tensors; a list, because PopTorch traces a shallow copy of this module.
        self._output: List[Structure] = []
        self.left: List[Place] = []
        self.unsure: Sequence[Place] = ()
        self.written = _WrittenByCall((self._output, self.left), model, self.host_weights, returned=True)
        self._on_host = _HostResults()

    @property
    def returns_views(self) -> bool:
        """True if it returns views of arguments, which are of one number of rows."""
        return any(own.is_argument and own.steps for _, own in self._on_host.returned)

    def take(self, tensors: Sequence[torch.Tensor], show: Callable[[Any], Any], given: Sequence[Any]) -> Any:
        """Return the output with the returned tensors, each by `show`, and store the tensors that a call stores.

        What the model has itself, or was `given`, takes the place of a copy.
        """
        output = show(unflatten(self._output[0], self._on_host.like(tensors)))
        # A view of an argument that requires gradients stays a copy, which refuses a backward pass.
        trained = [each.requires_grad for each in given]
        returned = [(each, own) for each, own in self._on_host.returned if not (own.steps and own.is_one_of(trained))]
        own_ids: FrozenSet[int] = frozenset()
        if returned:
            results = leaves_in(output)
            with torch.no_grad():
                own_ids = in_place_of_results(results, returned, self.model, given, current_line())
            output = unflatten(self._output[0], results)
        if self.left:
            output, left = output
            put(self.left, left, own_ids)
        return output

    def forward(self, *leaves: Any) -> Any:
        given = [leaf if shape else leaf.reshape(()) for leaf, shape in zip(leaves, self._shapes)]
        what = f"The forward of {type(self.model).__name__}, called at {current_line()},"
        own = GivenArguments(what, self._structure, given)
        with EAGER, guarded(self), ForwardGuard(), in_half(self.half_products):
            for route in self.stages:
                route.begin()
            held, buffers = HeldBuffers(self.model), dict(all_named_buffers(self.model))
            with assignments_written(self.model):
                output = self._called(functools.partial(self.model, *own.args, **own.kwargs))
            own.check()
            held.check(buffers, dict(all_named_buffers(self.model)))
            tensors: List[Any] = []
            self._output[:] = [flatten(output, tensors)]
            found = self.written.beside(tuple(tensors), self.model)
        if not backend.poptorch().isRunningOnIpu():
            self._on_host.shapes = [(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in tensors]
            self._on_host.returned = returned_in(tensors, given, named_tensors(self.model), evaluates=True)
        if not tensors:
            raise CaptureError(
                f"The model returned a {type(output).__qualname__} without tensors; nothing can come back."
            )
        return found

    def run_with(self, model: nn.Module, *leaves: Any) -> Any:
        """Return the result of a call of another model, without the tensors that it stores."""
        found = [leaf if shape else leaf.reshape(()) for leaf, shape in zip(leaves, self._shapes)]
        args, kwargs = unflatten(self._structure, found)
        with EAGER, assignments_written(model):
            return with_items(model(*args, **kwargs))

    def _called(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call and the tensors that it stores; the first call records their places."""
        if self._output:
            return called_beside(self.left, call)
        behind = LeftBehind(named_by(self.model), self._words)
        output = with_items(call())
        constants = behind.constants(self.shown.constant)
        known = {id(constant) for _, constant in constants}
        left_at = [place for place in behind.places(self._grows) if id(place.read()) not in known]
        self.left[:] = [place for place in left_at if is_flat(place.read())]
        left = [place.read() for place in self.left]
        behind.put_back()
        for place, constant in constants:
            place.write(constant)
        leave_all([place.read() for place in self.left])
        return (output, left) if left else output


def _called(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], line: Line) -> Any:
    """Call a function of PyTorch's for the device; errors name the line of the user's code."""
    try:
        return line.call(function, args, kwargs)
    except Exception as error:
        if error.args == (str(error),) and str(line) not in str(error):
            error.args = (f"{error} (It is {name_of(function)} at {line}.)",)
        raise


def _no_call(*args: Any) -> Any:
    raise CaptureError("A captured step calls the model as the user's code does.")
