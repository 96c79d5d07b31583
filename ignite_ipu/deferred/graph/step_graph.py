"""From recorded operations to a graph: the operations that the losses of an update depend on, in a comparable form."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import operator
import re
import weakref
from typing import Any, Callable, Container, Dict, Hashable, Iterator, List, Optional, Sequence, Tuple, Union

import torch

from ignite_ipu.deferred.graph.call_signatures import CallSignature
from ignite_ipu.deferred.graph.leaves import Input, Number
from ignite_ipu.deferred.graph.modes_then import ModesThen
from ignite_ipu.deferred.graph.operations import CLOCK, Operation, Value, by_number, name_of
from ignite_ipu.deferred.graph.structure import Bounded, Structure
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.forward.left_behind import Place
from ignite_ipu.program.reached import reached
from ignite_ipu.program.user_code import Line
from ignite_ipu.torch_names.tensors import version_of

_BITS = 20
_leaves_of: Callable[[Operation], Sequence[Any]] = operator.attrgetter("leaves")
_tensor_of: Callable[[Input], torch.Tensor] = operator.attrgetter("tensor")
# Where an argument comes from, as small as possible, since it is made for each in every step: results of operations are
# numbers from 0, which `result_of` takes apart, inputs are numbers below 0 (`~position`), parameters their names, and
# floats None, which are identified by their order.
Source = Union[int, str, None]
CALL: contextvars.ContextVar[Optional[object]] = contextvars.ContextVar("call", default=None)
"""Stands for the innermost call of an engine's step function that has not returned; None outside of all.

A step function that accumulates returns before the update of its loss has run, and its handlers run in between.
"""


@dataclasses.dataclass(frozen=True)
class GraphNode:
    """One operation of a graph: of a function, or of the part of the model at a path, if that is None.

    A call of a part of the model leaves tensors in some places, and `writes` into buffers of the part. `results` is the
    number of tensors that it returns.
    """

    function: Any
    structure: Structure
    leaves: Tuple[Source, ...]
    grad: bool
    line: Line
    part: str = ""
    left: Sequence[Place] = ()
    writes: Sequence[str] = ()
    results: int = 1

    @functools.cached_property
    def key(self) -> Hashable:
        called = self.function, self.structure.key, self.leaves, self.grad, self.part
        return (*called, self.results, tuple(self.left), *self.writes)


@dataclasses.dataclass(frozen=True)
class StepGraph:
    """Graph of one micro-batch's computation.

    Attributes:
        losses: `(operation, result)` of each loss; their sum is differentiated.
        inputs: Shape and type of each input.
        loss: The loss if it is the device's own loss: the only one, and without dimensions.
        differentiated: The positions of the inputs with respect to which the losses are differentiated.
    """

    steps: Tuple[GraphNode, ...]
    losses: Tuple[Tuple[int, int], ...]
    inputs: Tuple[Tuple[Tuple[int, ...], torch.dtype], ...]
    loss: Optional[Tuple[int, int]]
    differentiated: Tuple[int, ...] = ()

    @functools.cached_property
    def key(self) -> Hashable:
        """Equal for graphs that compile to the same program."""
        return (tuple([step.key for step in self.steps]), self.losses, self.inputs, self.differentiated)

    @functools.cached_property
    def description(self) -> str:
        """Equal for equal graphs of several processes."""
        names = [name_of(step.function) if step.function else step.part for step in self.steps]
        steps = [(name, step.structure.key, step.leaves, step.grad) for name, step in zip(names, self.steps)]
        return re.sub(r" at 0x[0-9a-f]+", "", repr((steps, self.losses, self.inputs)))

    @functools.cached_property
    def body(self) -> Hashable:
        """Equal for graphs that differ in the shapes of tensors alone, as that of an incomplete batch does."""
        return tuple([(step.function, step.structure.key, step.grad, step.part) for step in self.steps])


@dataclasses.dataclass(eq=False)
class Loss:
    """A value that went backward.

    Attributes:
        operations: The operations that it is computed from, in order.
        line: The line that called backward.
        retained: Whether gradients may flow through the operations once more.
        call: The call of an engine's step function that did so, None outside of these.
        number: Its place in the order of losses.
        moment: The time at which it went backward, in numbers of operations.
        batch: The micro-batch of the operations, if these were recognised by a `Chain`.
    """

    value: Value
    operations: Sequence[Operation]
    line: Line
    retained: bool = False
    call: Optional[object] = dataclasses.field(default_factory=CALL.get)
    number: int = dataclasses.field(default_factory=itertools.count().__next__)
    moment: int = dataclasses.field(default_factory=functools.partial(getattr, CLOCK, "now"))
    batch: Optional[MicroBatch] = None

    def discard(self, problem: str, but: Container[Operation] = ()) -> None:
        """Have the values of its operations, but for some, never be known, for a reason."""
        for operation in self.operations:
            if not operation.done and operation not in but:
                operation.problem = problem


class Tape:
    """The operations of losses with their operands, which outlive the update of these."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        self.losses = losses
        self._leaves: List[Tuple[Operation, Sequence[Any]]] = []
        for loss in losses:
            self._leaves += zip(loss.operations, map(_leaves_of, loss.operations))

    def rewind(self) -> None:
        """Have the operations as they were before their update."""
        for operation, leaves in self._leaves:
            operation.begin_again(leaves)

    @contextlib.contextmanager
    def rewound(self) -> Iterator[None]:
        """Have the operations as they were before their update, in the `with` block."""
        now = [(operation, operation.leaves) for operation, _ in self._leaves]
        for operation, leaves in self._leaves:
            operation.leaves = leaves
        try:
            yield
        finally:
            for operation, leaves in now:
                operation.leaves = leaves


@dataclasses.dataclass(eq=False)
class MicroBatch:
    """Operations that belong together, and their inputs from the host.

    Attributes:
        graph: Their comparable form: one object for all micro-batches that compute the same.
        numbers: The floats of its arithmetic, in order.
        parts: Number of the loop's micro-batches in it, of unlike graphs.
        chain: The chain of its operations; None for those of several losses, and of weights.
    """

    operations: Sequence[Operation]
    graph: StepGraph
    inputs: Sequence[Input]
    numbers: Tuple[float, ...]
    parts: int = 1
    chain: Optional[Chain] = None

    def serves(self, graphs: StepGraphs, operations: Sequence[Operation]) -> bool:
        """Return whether this is the micro-batch of operations by a finder of graphs."""
        return self.chain is not None and self.chain.graphs is graphs and self.operations is operations

    def tensors(self) -> List[torch.Tensor]:
        """Return the inputs' tensors; refuse one that was written into since it was recorded."""
        line, tensors = self.operations[0].line, []
        for item in self.inputs:
            if type(item.tensor) is not torch.Tensor or version_of(item.tensor) != item.writes:
                item.check(line)
            tensors.append(item.tensor.detach() if item.differentiated else item.tensor)
        return tensors


class Chain:
    """Operations of a loss that were seen before, with which later losses are compared from the last to the first.

    A loss that it matches was computed by calls of the same signatures, from results that no update has computed and
    from tensors of the host. Losses of known values, and of weights outside of models, match none.

    Attributes:
        graphs: The finder of the graph.
        graph: The graph of the operations.
        reference: A weak reference to this.
        models: The called models, whose loop a loss is of.
        modes: The modes of an update of one such loss by the only optimizer, once an update has shown them.
    """

    def __init__(
        self, graphs: StepGraphs, graph: StepGraph, operations: Sequence[Operation], trail: Sequence[Any]
    ) -> None:
        self.graphs, self.graph, self.reference = graphs, graph, weakref.ref(self)
        self.modes: Optional[ModesThen] = None
        self._index, self.models = graph.losses[0][1], [each.model for each in operations if each.model is not None]
        self._inputs = len(graph.inputs)
        self._numbers, rest = 0, iter(trail)
        steps: List[Tuple[int, CallSignature, Any, List[Tuple[Any, int, int]]]] = []
        for position, operation in enumerate(operations):
            signature: CallSignature = next(rest)
            sources: List[Tuple[Any, int, int]] = []
            for source in itertools.islice(rest, len(operation.leaves)):
                if source is None:
                    sources.append((Number, self._numbers, 0))
                    self._numbers += 1
                elif source < 0:
                    sources.append((Input, ~source, 0))
                else:
                    sources.append((Value, *result_of(source)))
            steps.append((position, signature, operation.model, sources))
        self._steps = steps[::-1]

    def match(self, value: Value) -> Optional[MicroBatch]:
        """Return the micro-batch of a loss; None if the loss is computed otherwise, or cannot go backward."""
        if value.tensor is not None or value.index != self._index:
            return None
        found: List[Any] = [None] * len(self._steps)
        inputs: List[Any] = [None] * self._inputs
        numbers: List[float] = [0.0] * self._numbers
        found[-1] = last = value.operation
        later = last.number + 1
        for position, signature, model, sources in self._steps:
            operation = found[position]
            if operation is None or operation.signature is not signature or operation.model is not model:
                return None
            if operation.number >= later or operation.done or operation.problem is not None:
                return None
            later = operation.number
            for leaf, (kind, place, index) in zip(operation.leaves, sources):
                if type(leaf) is not kind:
                    return None
                if kind is Value:
                    before = found[place]
                    if before is None:
                        found[place] = leaf.operation
                    elif before is not leaf.operation:
                        return None
                    if leaf.tensor is not None or leaf.index != index:
                        return None
                elif kind is Input:
                    before = inputs[place]
                    if leaf.parameter is not None or leaf.weight is not None or leaf.spent is not None:
                        return None
                    if leaf.differentiated or (before is not None and before.tensor is not leaf.tensor):
                        return None
                    inputs[place] = leaf
                else:
                    numbers[place] = leaf.value
        if len(inputs) > 1 and len(set(map(id, map(_tensor_of, inputs)))) < len(inputs):
            return None
        first, *others = self.models
        for each in others:
            if each.loop is not first.loop:
                return None
        return MicroBatch(found, self.graph, inputs, tuple(numbers), 1, self)


class StepGraphs:
    """The graphs of one model's micro-batches, each made once.

    A micro-batch is recognised by its trail: the signatures of its operations, and where their arguments come from.
    """

    def __init__(self) -> None:
        self._by_trail = Bounded()
        self._by_key = Bounded()

    def micro_batch(self, losses: Sequence[Loss]) -> MicroBatch:
        """Return the one micro-batch that computes all these losses."""
        operations = losses[0].operations
        before = losses[0].batch
        if len(losses) > 1:
            unique = {operation: None for loss in losses for operation in loss.operations}
            operations = sorted(unique, key=by_number)
        elif before is not None and before.serves(self, operations):
            return before
        positions: Dict[Operation, int] = {}
        inputs: List[Input] = []
        places: Dict[int, int] = {}
        numbers: List[float] = []
        trail: List[Any] = []
        for position, operation in enumerate(operations):
            positions[operation] = position
            trail.append(operation.signature)
            for leaf in operation.leaves:
                kind = type(leaf)
                if kind is Value:
                    earlier = positions.get(leaf.operation)
                    if earlier is not None:
                        trail.append(earlier << _BITS | leaf.index)
                        continue
                    leaf = Input(leaf.get(), leaf.shape)
                elif kind is Number:
                    numbers.append(leaf.value)
                    trail.append(None)
                    continue
                if leaf.parameter is not None:
                    path = "" if leaf.model is None else leaf.model.path
                    trail.append(f"{path}.{leaf.parameter}" if path else leaf.parameter)
                    continue
                key = id(leaf.tensor)
                place = places.get(key)
                if place is None:
                    place = places[key] = len(inputs)
                    inputs.append(leaf)
                elif leaf.differentiated:
                    inputs[place] = leaf
                trail.append(~place)
        for loss in losses:
            trail.append(positions[loss.value.operation] << _BITS | loss.value.index)
        whole = tuple(trail)
        known: Optional[Tuple[StepGraph, Optional[Chain]]] = self._by_trail.get(whole)
        if known is None:
            made = _step_graph(operations, trail, inputs, losses)
            graph = self._by_key[made.key] = self._by_key.get(made.key, made)
            plain = graph.loss is not None and losses[0].value.shape.requires_grad and not graph.differentiated
            plain = plain and str not in map(type, trail) and any(each.model is not None for each in operations)
            known = self._by_trail[whole] = graph, Chain(self, graph, operations, trail) if plain else None
        graph, chain = known
        if chain is not None and all([each.signature.went_backward for each in operations]):
            operations[-1].signature.chain = chain.reference
        return MicroBatch(operations, graph, inputs, tuple(numbers), 1, chain)

    def micro_batches(self, losses: Sequence[Loss]) -> List[MicroBatch]:
        """Return the micro-batches of a weight update, which all have one graph, since a device call repeats it.

        Gradients of several backward calls add up, so losses that share a call of the model are one loss, their sum.
        """
        groups: Dict[int, List[Loss]] = {}
        group_of: Dict[Operation, int] = {}
        for number, loss in enumerate(losses):
            together = []
            for earlier in sorted({group_of[operation] for operation in loss.operations if operation in group_of}):
                together += groups.pop(earlier)
            groups[number] = [*together, loss]
            for member in groups[number]:
                group_of.update(dict.fromkeys(member.operations, number))
        batches = [self.micro_batch(members) for members in groups.values()]
        if len(batches) > 1 and not _are_alike(batches):
            (batch,) = batches = [self.micro_batch(losses)]
            batch.parts = len(groups)
        return sorted(batches, key=lambda batch: batch.operations[0].number)


def _are_alike(batches: Sequence[MicroBatch]) -> bool:
    """Return whether micro-batches have one graph, and make each call with the modes of the first.

    Models that were joined in between have their modes together with those of others.
    """
    if len({id(batch.graph) for batch in batches}) > 1:
        return False
    firsts: Dict[int, ModesThen] = {}
    known: Dict[Tuple[int, int], ModesThen] = {}
    for batch in batches:
        for position, then in enumerate(modes_of_calls(batch)):
            before = known.setdefault((position, id(then.of)), then)
            if before is then:
                before = firsts.setdefault(position, then)
            if before is not then and not before.agrees_with(then):
                return False
    return True


def modes_of_calls(batch: MicroBatch) -> Tuple[ModesThen, ...]:
    """Return the modes of models in their calls of a micro-batch, in order."""
    return tuple([each.signature.modes for each in batch.operations if each.signature.modes is not None])


def ancestors(value: Value) -> List[Operation]:
    """Return the operations that a value is computed from, in order; known ones, if gradients can flow through them."""
    return _computing(value, operator.attrgetter("value_leaves"))


def sources_of(value: Value) -> List[Operation]:
    """Return those of `ancestors` without the ones of which functions take the shape of a tensor alone."""
    return _computing(value, operator.attrgetter("sources"))


def _computing(value: Value, leaves_of: Callable[[Operation], Sequence[Value]]) -> List[Operation]:
    def before(operation: Operation) -> List[Operation]:
        return [leaf.operation for leaf in leaves_of(operation) if leaf.tensor is None or leaf.live]

    return sorted(reached([value.operation], before), key=by_number)


def gradient_path(value: Value) -> Dict[Operation, None]:
    """Return the operations through which gradients of a value flow."""
    return reached(
        [value.operation],
        lambda each: [leaf.operation for leaf in each.value_leaves if leaf.shape.requires_grad],
    )


def describe_change(old: StepGraph, new: StepGraph) -> str:
    """Return in words how a graph differs from the one that was compiled."""
    for before, after in zip(old.steps, new.steps):
        if before.key != after.key:
            if before.function is not after.function:
                return f"{_named(before)} became {_named(after)}"
            if before.results != after.results:
                return f"{_named(after)} has {after.results} tensors as results, and had {before.results}"
            if before.leaves == after.leaves and before.grad == after.grad:
                return (
                    f"an argument of {_named(after)} changed (each value of it is a program: a number that changes "
                    "often and is computed with is passed as a tensor)"
                )
            return f"{_named(after)} is computed from other values"
    if len(old.steps) != len(new.steps):
        longer = new if len(new.steps) > len(old.steps) else old
        extra = longer.steps[min(len(old.steps), len(new.steps))]
        return f"{_named(extra)} was {'added' if longer is new else 'left out'}"
    for position, (mine, theirs) in enumerate(zip(old.inputs, new.inputs)):
        if mine != theirs:
            return f"input {position} is now {_described(theirs)}, it was {_described(mine)}"
    return "another loss goes backward"


def _refuse_empty(operation: Operation) -> None:
    """Refuse an operation with a tensor of the host without elements, as of a mask that selects nothing."""
    for leaf in operation.leaves:
        if type(leaf) is Input and 0 in leaf.shape.size:
            raise CaptureError(
                f"{operation.name} at {operation.line} gets a tensor of shape {leaf.shape.size}, as a mask gives that "
                "selects nothing in this batch, and an IPU has no tensors without elements. Leave such a batch out "
                "(if mask.any():), or multiply by the mask instead of selecting by it."
            )


def _step_graph(
    operations: Sequence[Operation], trail: Sequence[Any], inputs: Sequence[Input], losses: Sequence[Loss]
) -> StepGraph:
    rest = iter(trail)
    steps = []
    for operation in operations:
        _refuse_empty(operation)
        signature = next(rest)
        leaves = tuple(itertools.islice(rest, len(operation.leaves)))
        part = "" if operation.model is None else operation.model.path
        own = (signature.structure, leaves, signature.grad, operation.line, part, signature.left, signature.writes)
        steps.append(GraphNode(signature.function, *own, len(signature.shapes)))
    places = tuple(map(result_of, rest))
    shapes = tuple([(item.shape.size, item.shape.dtype) for item in inputs])
    loss = places[0] if len(places) == 1 and not losses[0].value.shape.size else None
    differentiated = tuple([position for position, item in enumerate(inputs) if item.differentiated])
    return StepGraph(tuple(steps), places, shapes, loss, differentiated)


def result_of(source: int) -> Tuple[int, int]:
    """Return which result of which operation a source is."""
    return source >> _BITS, source & ((1 << _BITS) - 1)


def _named(step: GraphNode) -> str:
    name = "the call of the model" if step.function is None else getattr(step.function, "__name__", "a function")
    return f"{name.strip('_')} ({step.line})"


def _described(tensor: Tuple[Tuple[int, ...], torch.dtype]) -> str:
    return f"a {tensor[1]} tensor of shape {tensor[0]}"
