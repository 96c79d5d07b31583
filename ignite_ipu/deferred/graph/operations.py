"""Recorded operations of a captured step, and their values, which exist once the step has run.

Operations that the loss depends on run on the device. All others are computed on the host, from the values that the
device returns, when they are read.
"""

from __future__ import annotations

import dataclasses
import operator
import weakref
from typing import (
    Any,
    Callable,
    Container,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch

from ignite_ipu.deferred.graph.call_signatures import CallSignature
from ignite_ipu.deferred.graph.leaves import Input, Number, Shape
from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.deferred.graph.structure import flatten, leaves_in, unflatten
from ignite_ipu.errors import CaptureError, EarlyReadError
from ignite_ipu.program.reached import reached
from ignite_ipu.program.tensors.strides import with_strides
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, version_of

by_number: Callable[[Operation], int] = operator.attrgetter("number")


@dataclasses.dataclass
class _Clock:
    """Numbers operations in the order of their calls, up to `now`, and the last one with known values.

    Evaluations that write buffers are numbered as well.

    `settled` is the value of `now` when values last came back from a device. Operations recorded later depend on values
    that were missing then, so their values are unknown now.
    """

    now: int = 0
    settled: int = 0


CLOCK = _Clock()


def _nobody() -> None:
    return None


class Value:
    """One result tensor of an operation, the `index`-th.

    Attributes:
        handle: Weakly, the deferred tensor that the user holds.
        consumers: Weakly, the operations that read it.
        went_backward: Called when it goes backward, if its update has run before; None for all others. The argument is
            whether gradients may flow through its sources once more.
    """

    __slots__ = (
        *("__weakref__", "_writes", "consumers", "handle", "index", "operation", "shape", "tensor", "went_backward"),
    )

    def __init__(self, operation: Operation, index: int, shape: Shape) -> None:
        self.operation = operation
        self.index = index
        self.shape = shape
        self.tensor: Optional[torch.Tensor] = None
        self._writes = 0  # those into the tensor that were before
        self.handle: Callable[[], Optional[torch.Tensor]] = _nobody
        self.consumers: List[weakref.ref[Operation]] = []
        self.went_backward: Optional[Callable[[bool], None]] = None

    @property
    def known(self) -> bool:
        """True if the value can be had without running anything on the device."""
        operation = self.operation
        return self.tensor is not None or (operation.number <= CLOCK.settled and operation.computable)

    @property
    def available(self) -> bool:
        """True if the value is known, or was recorded for its gradients alone: the host can compute it now."""
        return self.known or (not self.operation.of_weights and self.operation.needs_no_device)

    @property
    def live(self) -> bool:
        """True if the value is known, and gradients can flow through it all the same."""
        return self.shape.requires_grad and self.known and self.operation.live

    def get(self) -> torch.Tensor:
        """Return the tensor; raises an `EarlyReadError` if the device has not computed its dependencies."""
        if self.tensor is None:
            if not self.operation.computable:
                raise EarlyReadError(self.operation.problem or "This value has not been computed.")
            self.operation.compute()
        assert self.tensor is not None
        return self.tensor

    def take(self, tensor: torch.Tensor) -> None:
        shape = self.shape
        tensor = tensor if tensor.dtype is shape.dtype else tensor.to(shape.dtype)
        self.tensor = tensor if tensor.stride() == shape.stride else with_strides(tensor, shape.size, shape.stride)
        self._writes = 0 if tensor.is_inference() else version_of(self.tensor)

    def read_by(self, operation: Operation) -> torch.Tensor:
        """Return the tensor for an operation that was recorded before it was known; refuse one written since."""
        tensor = self.get()
        if not tensor.is_inference() and version_of(tensor) != self._writes:
            raise CaptureError(
                f"{operation.name} at {operation.line} was recorded before its operand of shape {self.shape.size} was "
                "known. It is computed when it is first read, and the operand was written in place before that. Read "
                "the value before the write, as by item() right after optimizer.step(); or write into a clone()."
            )
        return tensor

    def keep_for_readers(self) -> None:
        """Let operations that have yet to be computed from it have its present values: code may write into its memory.

        Views are computed now, since they share the memory.
        """
        pending = [each for each in self.readers() if not each.done]
        if not pending or not self.known:
            return
        kept = Value(self.operation, self.index, self.shape)
        kept.take(self.get().clone())
        for each in pending:
            if each.signature.aliases and each.computable:
                each.compute()
                for view in each.values:
                    view.keep_for_readers()
            else:
                each.leaves = [kept if leaf is self else leaf for leaf in each.leaves]
                kept.consumers.append(weakref.ref(each))

    def is_needed(self, device: Set[Operation]) -> bool:
        """Return whether this value may be read beside the operations on the device."""
        return self.handle() is not None or not device.issuperset(self.readers())

    def readers(self) -> List[Operation]:
        """Return the operations that read it and are still alive."""
        return [operation for operation in [consumer() for consumer in self.consumers] if operation is not None]


def weight_then(leaf: Input, operation: Operation) -> torch.Tensor:
    """Return a weight, of which the host has the newest values, as an operation that reads it was called with it.

    Raises:
        CaptureError: It has changed since, and the value from before is unknown.
    """
    assert leaf.model is not None
    loop = leaf.model.loop
    then = loop.reads.weights_then(operation)
    if then is None:
        raise CaptureError(
            f"A value computed at {operation.line} is read at {current_line()}, and weights of {loop.name} that it was "
            "computed with have changed since. Their values at that time are unknown. Read the value before weights "
            "change, as by item(), or compute it anew."
        )
    return next((value for weight, value in then if weight is leaf.tensor), leaf.tensor)


USES: Dict[int, weakref.ref[Operation]] = {}
"""Functions that were called with weights of captured models, until their results go backward; by their numbers."""

DIFFERENTIATED: Dict[int, weakref.ref[Operation]] = {}
"""Operations of tensors that are no weights, with respect to which losses are differentiated; by their numbers."""

NORM = CallSignature(
    None, flatten(((), {}), []), False, flatten(torch.empty(()), []), [Shape((), (), torch.float32, False)]
)
"""Signature of what gives the norm of an update's gradients, which comes with the update."""


class Contents(NamedTuple):
    """The contents of a buffer around the first run of a call that writes it; None if they are not known."""

    before: Optional[torch.Tensor]
    after: Optional[torch.Tensor] = None


_NO_CONTENTS: Mapping[str, Contents] = {}


class Operation:
    """One recorded call, of a captured model or of a function.

    Attributes:
        leaves: `Value`, `Input` or `Number` for every leaf of the arguments.
        results: Weakly, its values.
        done: Whether its values are known.
        problem: The reason why its values will never be known.
        kept: Objects that are of no use once this cannot run any more; not set if there are none.
        contents: Contents of the buffers that it writes, by name, around its first run; empty if they cannot be needed.
        of_weights: Whether it is computed from weights and tensors of the host alone, by functions.
    """

    __slots__ = (
        *("__weakref__", "_is_live", "contents", "done", "kept", "leaves", "line", "model", "number", "of_weights"),
        *("problem", "results", "signature"),
    )
    kept: List[Any]

    def __init__(self, signature: CallSignature, model: Optional[Captured], leaves: Sequence[Any], line: Line) -> None:
        self.number = CLOCK.now = CLOCK.now + 1
        self.signature = signature
        self.model = model
        self.leaves = leaves
        self.line = line
        self.results: Sequence[weakref.ref[Value]] = ()
        self.problem: Optional[str] = None
        self.done = False
        self.contents = _NO_CONTENTS
        self._is_live: Optional[bool] = None
        self.of_weights = signature.function is not None
        for leaf in leaves:
            if type(leaf) is Input:
                if leaf.parameter is not None and model is None:
                    _note_in(USES, self)
                elif leaf.differentiated:
                    _note_in(DIFFERENTIATED, self)
            elif type(leaf) is Value:
                reference = weakref.ref(self)
                leaf.consumers.append(reference)
                self.of_weights &= leaf.operation.of_weights
        if signature.described:
            self.of_weights = all(leaf.operation.of_weights for leaf in self.sources)

    @property
    def name(self) -> str:
        return "the model" if self.signature.function is None else name_of(self.signature.function)

    @property
    def values(self) -> List[Value]:
        """Values of its results that are still referenced."""
        return [value for value in [result() for result in self.results] if value is not None]

    @property
    def computable(self) -> bool:
        """True if the host can compute it from known values."""
        settled = CLOCK.settled
        return not any(each.done or each.signature.function is None or each.number > settled for each in self._needed())

    @property
    def needs_no_device(self) -> bool:
        """True if it is computed by functions alone from known values, whenever they were recorded."""
        seen: Set[Operation] = set()
        waiting = [self]
        while waiting:  # newest first: this mostly ends at once, however long the chain of operations is
            each = waiting.pop()
            if each.done or each.signature.function is None:
                return False
            if each not in seen:
                seen.add(each)
                waiting += [leaf.operation for leaf in each.sources if leaf.tensor is None]
        return True

    def give(self) -> List[Value]:
        """Return new values for its results, which live as long as they are held."""
        signature = self.signature
        if signature.single:
            value = Value(self, 0, signature.shapes[0])
            self.results = (weakref.ref(value),)
            return [value]
        values = [Value(self, index, shape) for index, shape in enumerate(signature.shapes)]
        self.results = list(map(weakref.ref, values))
        return values

    def compute(self) -> None:
        with torch.no_grad():
            for operation, tensors in replayed(sorted(self._needed(), key=by_number), shown_input).items():
                lives = operation.signature.trains and operation.live
                operation.settle(tensors, keep=lives)
                if lives:  # as long as those that it is computed from
                    operation._is_live = None

    def _needed(self) -> Iterable[Operation]:
        """Return this and the operations that have to be computed before."""
        return reached([self], lambda each: [leaf.operation for leaf in each.sources if leaf.tensor is None])

    @property
    def value_leaves(self) -> List[Value]:
        return [leaf for leaf in self.leaves if type(leaf) is Value]

    @property
    def sources(self) -> List[Value]:
        """The results of other operations whose values it is computed from, and not from their shapes alone."""
        described = self.signature.described
        if not described:
            return self.value_leaves
        return [leaf for number, leaf in enumerate(self.leaves) if type(leaf) is Value and number not in described]

    def settle(self, tensors: Sequence[torch.Tensor], keep: bool = False) -> None:
        """Give the values their tensors; `keep` the operands, for gradients that may flow through it."""
        for value in self.values:
            value.take(tensors[value.index])
        self.finish(keep)

    @property
    def live(self) -> bool:
        """True if gradients can flow through it to weights, also when its values are known."""
        if self._is_live is None:
            if self.signature.function is None:
                return self.signature.grad
            values = [leaf for leaf in self.leaves if type(leaf) is not Number and leaf.shape.requires_grad]
            if any(type(leaf) is Input or leaf.operation.live for leaf in values):
                return True
            if all(leaf.operation.done for leaf in values):
                self._is_live = False
        return bool(self._is_live)

    @property
    def is_spent(self) -> bool:
        """True if its values are known, and no gradients can flow through it any more."""
        return self.done and not self.live

    @property
    def has_lost_operands(self) -> bool:
        """True if its values are known, and its operands were let go, so that it cannot be computed anew."""
        return self.is_spent and not self.leaves

    def begin_again(self, leaves: Sequence[Any]) -> None:
        """Be one that no update has computed, from these leaves; values that are known stay so."""
        self.leaves, self.done, self._is_live = leaves, False, None

    def stay_live(self, leaves: Sequence[Any]) -> None:
        """Be one that gradients may flow through once more, with its operands from before it was done."""
        self.leaves, self._is_live = leaves, True

    def finish(self, keep: bool = False) -> None:
        """Mark as done; `keep` the operands, for another update."""
        self.done, self._is_live = True, keep
        if not keep:
            self.leaves, self.contents = (), _NO_CONTENTS


def unknown_values(operations: Sequence[Operation], device: Container[Operation]) -> List[Tuple[int, Value, bool]]:
    """Return the values of operations that are unknown, each after the position of its operation.

    The last item is whether code may read the value after an update that makes the operations of `device`, or another
    update may that does not compute it, as a target without gradients.
    """
    found: List[Tuple[int, Value, bool]] = []
    for position, operation in enumerate(operations):
        for reference in operation.results:
            value = reference()
            if value is None or value.tensor is not None:
                continue
            is_read = value.handle() is not None
            for consumer in () if is_read else value.consumers:
                reader = consumer()
                is_read = is_read or (reader is not None and reader not in device)
            found.append((position, value, is_read))
    return found


def finish_all(operations: Iterable[Operation]) -> None:
    """Mark operations as done, without their operands."""
    for each in operations:
        each.done, each._is_live, each.leaves, each.contents = True, False, (), _NO_CONTENTS


def _note_in(table: Dict[int, weakref.ref[Operation]], operation: Operation) -> None:
    """Have an operation in a table as long as it lives."""
    number = operation.number
    table[number] = weakref.ref(operation, lambda _: table.pop(number, None))


def leave_uses(operations: Iterable[Operation]) -> None:
    """Take operations that went backward out of `USES`."""
    for operation in operations:
        USES.pop(operation.number, None)


def is_statistic_of(leaf: Input, operation: Operation) -> bool:
    """Return whether an operand of a function is a buffer of a captured model that the function writes."""
    return operation.model is None and bool(operation.signature.writes) and leaf.is_buffer


def replayed(
    operations: Iterable[Operation],
    tensor_of: Callable[[Input, Operation], torch.Tensor],
    called: Optional[Callable[[Operation, List[Any]], Any]] = None,
    known: Optional[Mapping[Operation, List[torch.Tensor]]] = None,
    writes: bool = False,
) -> Dict[Operation, List[torch.Tensor]]:
    """Compute recorded operations on the host, in their order, and return the result tensors of each.

    Their operands are `known`, or computed by earlier ones. `tensor_of` returns the tensor that an operation reads for
    an input, and `called` the result of a model's call for leaves. Normalisations that are functions get copies of the
    statistics that they write, unless `writes`: these belong to the book of buffers.
    """
    results: Dict[Operation, List[torch.Tensor]] = dict(known or {})

    def read(leaf: Any, operation: Operation) -> Any:
        if type(leaf) is Value:
            return results[leaf.operation][leaf.index] if leaf.operation in results else leaf.read_by(operation)
        if type(leaf) is Number:
            return leaf.value
        tensor = tensor_of(leaf, operation)
        return tensor.clone() if not writes and is_statistic_of(leaf, operation) else tensor

    with DisableTorchFunctionSubclass():
        for operation in operations:
            signature = operation.signature
            leaves = [
                leaf.shape.empty() if number in signature.described else read(leaf, operation)
                for number, leaf in enumerate(operation.leaves)
            ]
            with torch.set_grad_enabled(signature.grad and torch.is_grad_enabled()):
                if signature.function is None:
                    assert called is not None
                    output = called(operation, leaves)
                else:
                    args, kwargs = unflatten(signature.structure, leaves)
                    output = signature.function(*args, **kwargs)
            results[operation] = leaves_in(output)
    return results


def shown_input(leaf: Input, operation: Operation) -> torch.Tensor:
    """Return the tensor of an input that has not been written into since; of a weight, with its value at that time."""
    leaf.check(operation.line, late=True)
    if leaf.model is None:
        return leaf.tensor
    leaf.model.loop.reads.show_weights([operation])
    return weight_then(leaf, operation)


def keep_inputs(operations: Iterable[Operation], every: bool = False) -> None:
    """Copy the inputs of operations, and of those that follow them.

    These are the ones whose memory PyTorch does not own, or `every` one.
    """
    copies: Dict[int, torch.Tensor] = {}
    for operation in reached(operations, lambda each: [reader for value in each.values for reader in value.readers()]):
        for leaf in operation.leaves:
            if type(leaf) is Input:
                leaf.keep(copies, every)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function of PyTorch's in messages."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("_")
