"""Recorded operations of a captured step, and the values they give, which exist once the step has run.

What the loss is computed from runs on the device; everything else that was recorded is computed on the host from what
the device returns, when somebody asks for it.
"""

from __future__ import annotations

import operator
import weakref
from typing import Any, Callable, Container, Dict, Hashable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.graph.owners import Captured
from ignite_ipu.deferred.graph.structure import Structure, flatten, leaves_in, unflatten
from ignite_ipu.deferred.graph.writes import describe_writes
from ignite_ipu.errors import CaptureError, EarlyReadError
from ignite_ipu.program.tensors.raw import plain
from ignite_ipu.program.user_code import Line

__all__ = [
    "CLOCK",
    "NORM",
    "USES",
    "CallSignature",
    "Input",
    "ModesThen",
    "Number",
    "Operation",
    "Shape",
    "Value",
    "by_number",
    "keep_inputs",
    "keep_weights",
    "name_of",
]

_META = torch.device("meta")
# Before PyTorch 2.1 no storage tells whether its memory is PyTorch's: none counts as if it were.
_is_resizable: Callable[[Any], bool] = getattr(torch.UntypedStorage, "resizable", lambda storage: False)
by_number: Callable[[Operation], int] = operator.attrgetter("number")


class _Clock:
    """Numbers operations in the order of their calls, and remembers how far values are known.

    Attributes:
        now: Number of the last operation.
        settled: What `now` was when values last came back from a device. What was recorded later was recorded because
            it depends on values that nobody had then, so it is not known now.
    """

    __slots__ = ("now", "settled")

    def __init__(self) -> None:
        self.now = 0
        self.settled = 0


CLOCK = _Clock()


class Shape:
    """Properties of a tensor that has not been computed.

    Attributes:
        size, stride, dtype: As of the tensor.
        requires_grad: Whether it depends on trainable weights.
        aliases: Whether it may share its memory with what it was computed from.
    """

    __slots__ = ("aliases", "dtype", "key", "requires_grad", "size", "stride")

    def __init__(
        self,
        size: Tuple[int, ...],
        stride: Tuple[int, ...],
        dtype: torch.dtype,
        requires_grad: bool,
        aliases: bool = False,
    ) -> None:
        self.size = size
        self.stride = stride
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.aliases = aliases
        self.key = (size, stride, dtype, requires_grad)

    @classmethod
    def of(cls, tensor: torch.Tensor, requires_grad: bool, aliases: bool = False) -> Shape:
        """Return the shape of an existing tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, requires_grad, aliases)

    def meta(self) -> torch.Tensor:
        """Return a tensor like this on the meta device."""
        tensor = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=_META)
        return tensor.requires_grad_() if self.requires_grad else tensor


class Number:
    """A Python number in an arithmetic operation of floats, which may change from step to step."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class Input:
    """A tensor of the host that a recorded operation reads.

    Attributes:
        tensor: The tensor; nobody may write into it before the step has run.
        parameter, model: Name it has as a parameter or buffer of a captured model, and that; None for any other tensor.
        weight: The trained weight of which the tensor is a copy, as it was before it was known whose it is, or before
            an update; None for all others.
    """

    __slots__ = ("_original", "_shape", "_version", "model", "parameter", "tensor", "weight")

    def __init__(
        self,
        tensor: torch.Tensor,
        shape: Optional[Shape] = None,
        parameter: Optional[str] = None,
        model: Optional[Captured] = None,
    ) -> None:
        self.tensor = tensor
        self._shape = shape
        self.parameter = parameter
        self.model = model
        self.weight: Optional[torch.Tensor] = None
        self._version = tensor._version if parameter is None else 0
        # What a copy was made of, and its version then.
        self._original: Optional[Tuple[torch.Tensor, int]] = None

    @property
    def changed(self) -> bool:
        """True if the tensor that this is a copy of was written into since."""
        return self._original is not None and self._original[0]._version != self._original[1]

    @property
    def shape(self) -> Shape:
        """Properties of the tensor."""
        if self._shape is None:
            self._shape = Shape.of(self.tensor, False)
        return self._shape

    @classmethod
    def of_weight(cls, weight: torch.Tensor) -> Input:
        """Return a trained weight as it is now."""
        found = cls(weight, Shape.of(weight, True), "")
        found.set_aside()
        return found

    def set_aside(self) -> None:
        """Keep a copy of the weight, which the host has newest, since it is about to change."""
        self.weight, self.tensor = self.tensor, plain(self.tensor).clone()
        self.parameter = self.model = None
        self._version = self.tensor._version

    def belong(self, parameter: str, model: Captured, line: Line) -> None:
        """Be a weight again, for a loss that was computed from the copy at a line.

        Raises:
            CaptureError: The weight has other values by now.
        """
        assert self.weight is not None
        model.show_weights(())
        if not torch.equal(plain(self.weight), self.tensor):
            raise CaptureError(
                f"The loss was computed at {line} from the weight {parameter}, which was updated or written since. The "
                "device computes a loss and its update together, from the weights of the update: compute what depends "
                "on weights anew for each update; or detach() it, for a constant."
            )
        self.tensor, self.weight, self.parameter, self.model = self.weight, None, parameter, model

    def check(self, line: Line, late: bool = False) -> None:
        """Refuse a tensor that was written into since it was recorded.

        Args:
            line: Where it was recorded.
            late: Whether the host computes with it, for somebody who reads a value that is no part of the loss.

        Raises:
            CaptureError: It was.
        """
        if self.parameter is not None:
            return
        if type(self.tensor) is not torch.Tensor:
            # What was recorded before `tensor += loss` reads the value of then, which its memory still has.
            with torch._C.DisableTorchFunctionSubclass():
                self.tensor = self.tensor.detach()
        if self.tensor._version != self._version:
            use = f"A tensor of shape {self.shape.size} was used"
            change = f"changed in place afterwards{describe_writes(self.tensor)}"
            if late:
                raise CaptureError(
                    f"{use} at {line} for a value that is no part of the loss, and {change}. Such a value is computed "
                    "when it is first read, and now its tensor holds something else. Read the value before you write "
                    "into the tensor, as by item() right after optimizer.step(); or compute it from tensor.clone()."
                )
            raise CaptureError(
                f"{use} in the training step at {line} and {change}, before the step ran with optimizer.step(). Change "
                "a copy of it, or change it after optimizer.step()."
            )

    def keep(self, copies: Dict[int, torch.Tensor], every: bool = False) -> None:
        """Copy memory that is not PyTorch's, as that of a numpy array, in which others write without its notice.

        Args:
            copies: Those that were made before, by `id` of the tensor.
            every: Whether to copy PyTorch's, too.
        """
        tensor = self.tensor
        if self.parameter is not None or type(tensor) is not torch.Tensor or tensor._version != self._version:
            return
        if every or not _is_resizable(tensor.untyped_storage()):
            self._original = tensor, tensor._version
            copy = copies.get(id(tensor))
            self.tensor = copies[id(tensor)] = tensor.clone() if copy is None else copy
            self._version = self.tensor._version


class Value:
    """One tensor that an operation gives.

    Attributes:
        operation, index: Which result of which operation it is.
        shape: What it will look like.
        tensor: The tensor, None until it is known.
        handle: Weakly, the deferred tensor that the user holds.
        consumers: Weakly, the operations that read it.
        early: What ran the update for it before it went backward; None for all others.
    """

    __slots__ = ("__weakref__", "consumers", "early", "handle", "index", "operation", "shape", "tensor", "viewed")

    def __init__(self, operation: Operation, index: int, shape: Shape) -> None:
        self.operation = operation
        self.index = index
        self.shape = shape
        self.tensor: Optional[torch.Tensor] = None
        self.handle: Callable[[], Optional[torch.Tensor]] = _nobody
        self.consumers: List[weakref.ref[Operation]] = []
        self.viewed = shape.aliases
        self.early: Optional[Captured] = None

    @property
    def known(self) -> bool:
        """True if the value can be had without running anything on the device."""
        operation = self.operation
        return self.tensor is not None or (operation.number <= CLOCK.settled and operation.computable)

    @property
    def live(self) -> bool:
        """True if the value is known, and gradients can flow through it all the same."""
        return self.shape.requires_grad and self.known and self.operation.live

    def get(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            EarlyReadError: The device has not computed what it depends on.
        """
        if self.tensor is None:
            if not self.operation.computable:
                raise EarlyReadError(self.operation.problem or "This value has not been computed.")
            self.operation.compute()
        assert self.tensor is not None
        return self.tensor

    def take(self, tensor: torch.Tensor) -> None:
        """Be known from now on."""
        dtype = self.shape.dtype
        self.tensor = tensor if tensor.dtype is dtype else tensor.to(dtype)

    def is_needed(self, device: Container[Operation]) -> bool:
        """Tell whether somebody besides the operations on the device may ask for this value."""
        if self.handle() is not None:
            return True
        for consumer in self.consumers:
            operation = consumer()
            if operation is not None and operation not in device:
                return True
        return False


def keep_weights(models: Container[Captured]) -> None:
    """Keep the weights of models, some about to change, that functions were called with whose results nobody knows."""
    for operation in list(USES):
        for leaf in operation.leaves:
            if type(leaf) is Input and leaf.model is not None and leaf.model.whole in models:
                leaf.model.show_weights([operation])
                leaf.set_aside()


class ModesThen(NamedTuple):
    """The modes of a captured model at one moment.

    Attributes:
        of: What found them, one for each model.
        training: Whether each module is in training mode.
        trained: Whether each parameter requires gradients.
        names, values: The Python values that the modules' code reads.
        parts: The modules and their hooks.
    """

    of: object
    training: List[bool]
    trained: List[bool]
    names: List[str]
    values: List[Hashable]
    parts: List[Any]

    def difference(self, now: ModesThen) -> str:
        """Return in words what has changed."""
        if self.training != now.training:
            return "modules were put in training or evaluation mode"
        if self.trained != now.trained:
            return "parameters were frozen or unfrozen"
        if self.parts != now.parts:
            return "modules or hooks were replaced, added or removed"
        pairs = zip(now.names, self.values, now.values)
        names = [name for name, old, new in pairs if old != new] if self.names == now.names else []
        return f"Python values that its code reads have changed ({', '.join(dict.fromkeys(names)) or 'others'})"


class CallSignature:
    """Common part of all calls of one kind; calls are of one kind if they have the same signature object.

    Attributes:
        function: What is called; None for a captured model.
        structure: Its arguments `(args, kwargs)` without the leaves.
        grad: Whether gradients are enabled.
        result: What surrounds the tensors of the result.
        shapes: What these tensors look like.
        single: Whether the result is one tensor and nothing else.
        aliases: Whether some of the result may share memory with an argument.
        modes: The modes of the captured model that is called; None for a function.
        writes: Names of the buffers that the call of a captured model writes into.
        draws: Whether the call of a captured model draws random numbers.
        warned: Whether somebody was told that it draws them in two programs.
    """

    __slots__ = (
        *("aliases", "draws", "function", "grad", "modes", "result", "shapes", "single", "structure", "warned"),
        "writes",
    )

    def __init__(
        self,
        function: Optional[Callable[..., Any]],
        structure: Structure,
        grad: bool,
        result: Structure,
        shapes: Sequence[Shape],
        modes: Optional[ModesThen] = None,
        writes: Sequence[str] = (),
        draws: bool = False,
    ) -> None:
        self.function = function
        self.structure = structure
        self.grad = grad
        self.result = result
        self.shapes = tuple(shapes)
        self.single = result.is_leaf
        self.aliases = any(shape.aliases for shape in shapes)
        self.modes = modes
        self.writes = tuple(writes)
        self.draws, self.warned = draws, False


USES: weakref.WeakSet[Operation] = weakref.WeakSet()
"""Functions that were called with weights of captured models, until their results go backward."""

NORM = CallSignature(
    None, flatten(((), {}), []), False, flatten(torch.empty(()), []), [Shape((), (), torch.float32, False)]
)
"""Signature of what gives the norm of an update's gradients, which comes with the update."""


class Operation:
    """One recorded call.

    Attributes:
        number: Grows in the order of the calls.
        signature: What is called, and how.
        model: The captured model that is called, None for a function.
        leaves: `Value`, `Input` or `Number` for every leaf of the arguments.
        results: Weakly, the values it gives.
        line: Where it was called.
        done: Whether its values are known.
        problem: Why its values will never be known.
        kept: What is of no use once nobody can run this any more; not set where there is nothing.
        before: What was in the buffers that it writes when it ran first, by name; empty where nobody may ask.
        of_weights: Whether it is computed from weights and tensors of the host alone, by functions.
    """

    __slots__ = (
        *("__weakref__", "_is_live", "before", "done", "kept", "leaves", "line", "model", "number", "of_weights"),
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
        self.before: Mapping[str, torch.Tensor] = {}
        self._is_live: Optional[bool] = None
        self.of_weights = signature.function is not None
        for leaf in leaves:
            if type(leaf) is Input:
                if leaf.parameter is not None and model is None:
                    USES.add(self)
            elif type(leaf) is Value:
                reference = weakref.ref(self)
                leaf.consumers.append(reference)
                self.of_weights &= leaf.operation.of_weights
                if signature.aliases:
                    leaf.viewed = True

    @property
    def name(self) -> str:
        """Name in messages."""
        return "the model" if self.signature.function is None else name_of(self.signature.function)

    @property
    def computable(self) -> bool:
        """True if the host can compute it from what is known."""
        return self._needed() is not None

    def give(self) -> List[Value]:
        """Return the values of the results."""
        values = [Value(self, index, shape) for index, shape in enumerate(self.signature.shapes)]
        self.results = [weakref.ref(value) for value in values]
        return values

    def compute(self) -> None:
        """Compute the results on the host, from values that are known."""
        for operation in sorted(self._needed() or (), key=by_number):
            operation._compute_own()

    def _needed(self) -> Optional[Sequence[Operation]]:
        """Return this and the operations that have to be computed before, None if one of them needs the device.

        A total over many micro-batches is a chain of operations that is longer than Python's stack.
        """
        found = {self: None}
        waiting = [self]
        while waiting:
            operation = waiting.pop()
            if operation.done or operation.signature.function is None or operation.number > CLOCK.settled:
                return None
            for leaf in operation.leaves:
                if type(leaf) is Value and leaf.tensor is None and leaf.operation not in found:
                    found[leaf.operation] = None
                    waiting.append(leaf.operation)
        return list(found)

    def _compute_own(self) -> None:
        args, kwargs = self.arguments()
        function = self.signature.function
        assert function is not None
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
        self.settle(result)

    def arguments(self) -> Any:
        """Return `(args, kwargs)`, whose tensors are known.

        Raises:
            CaptureError: One was written into since.
        """
        return unflatten(self.signature.structure, [self._on_host(leaf) for leaf in self.leaves])

    def settle(self, result: Any) -> None:
        """Be done, with what the host has computed."""
        for reference, tensor in zip(self.results, leaves_in(result)):
            value = reference()
            if value is not None:
                value.take(tensor)
        self.finish()

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

    def finish(self, keep: bool = False) -> None:
        """Be done.

        Args:
            keep: Whether to remember what the results were computed from, for another optimizer's update.
        """
        self.done, self._is_live = True, keep
        if not keep:
            self.leaves, self.before = (), {}

    def _on_host(self, leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return leaf.get()
        if isinstance(leaf, Input):
            leaf.check(self.line, late=True)
            if leaf.model is not None:
                leaf.model.show_weights([self])
            return leaf.tensor
        return leaf.value


def keep_inputs(operations: Sequence[Operation], copies: Dict[int, torch.Tensor], every: bool = False) -> None:
    """Copy memory that is not PyTorch's of what operations read, and of what is computed from their results.

    Args:
        operations: Where to begin.
        copies, every: As for `Input.keep`.
    """
    found = dict.fromkeys(operations)
    waiting = list(found)
    while waiting:
        operation = waiting.pop()
        for leaf in operation.leaves:
            if type(leaf) is Input:
                leaf.keep(copies, every)
        for result in operation.results:
            value = result()
            for reference in () if value is None else value.consumers:
                consumer = reference()
                if consumer is not None and consumer not in found:
                    found[consumer] = None
                    waiting.append(consumer)


def name_of(function: Callable[..., Any]) -> str:
    """Return what messages call a function of PyTorch's."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("_")


def _nobody() -> None:
    return None
