"""What a captured step consists of: recorded operations and the values they give, which exist once the step has run.

An operation is recorded with its shapes found on PyTorch's meta device, so recording costs nothing that grows with the
model. What the loss is computed from runs on the device; everything else that was recorded is computed on the host from
what the device returns, when somebody asks for it.
"""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Hashable, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.deferred.errors import CaptureError, EarlyReadError, Line, shown
from ignite_ipu.deferred.structure import Structure, put_together, take_apart

if TYPE_CHECKING:
    from ignite_ipu.deferred.model import CapturedModel

__all__ = ["Input", "Number", "Operation", "Shape", "Value", "infer_shapes", "name_of", "write_back", "write_known"]

_META = torch.device("meta")
_NUMBERS = itertools.count()


class Shape:
    """What is known of a tensor that has not been computed.

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
    """A Python float in an arithmetic operation, which may change from step to step."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value


class Input:
    """A tensor of the host that a recorded operation reads.

    Attributes:
        tensor: The tensor; nobody may write into it before the step has run.
        parameter: Name it has as a parameter or buffer of the captured model, None for any other tensor.
    """

    __slots__ = ("_version", "model", "parameter", "shape", "tensor")

    def __init__(
        self,
        tensor: torch.Tensor,
        shape: Shape,
        parameter: Optional[str] = None,
        model: Optional[CapturedModel] = None,
    ) -> None:
        self.tensor = tensor
        self.shape = shape
        self.parameter = parameter
        self.model = model
        self._version = tensor._version if parameter is None else 0

    def check(self, line: Line) -> None:
        """Refuse a tensor that was written into since it was recorded.

        Raises:
            CaptureError: It was.
        """
        if self.parameter is None and self.tensor._version != self._version:
            raise CaptureError(
                f"A tensor of shape {self.shape.size} was used in the training step at {shown(line)} and changed in "
                "place afterwards, before the step ran with optimizer.step(). Change a copy of it, or change it after "
                "optimizer.step()."
            )


class Value:
    """One tensor that an operation gives.

    Attributes:
        operation, index: Which result of which operation it is.
        shape: What it will look like.
        tensor: The tensor, None until it is known.
        handle: Weakly, the deferred tensor that the user holds.
        consumers: Weakly, the operations that read it.
    """

    __slots__ = ("__weakref__", "consumers", "handle", "index", "operation", "shape", "tensor", "viewed")

    def __init__(self, operation: Operation, index: int, shape: Shape) -> None:
        self.operation = operation
        self.index = index
        self.shape = shape
        self.tensor: Optional[torch.Tensor] = None
        self.handle: Callable[[], Optional[torch.Tensor]] = _nobody
        self.consumers: List[weakref.ref[Operation]] = []
        self.viewed = shape.aliases

    @property
    def known(self) -> bool:
        """Whether the value can be had without running anything on the device."""
        return self.tensor is not None or self.operation.computable

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

    def is_needed(self, device: Dict[Operation, int]) -> bool:
        """Tell whether somebody besides the operations on the device may ask for this value."""
        if self.handle() is not None:
            return True
        for consumer in self.consumers:
            operation = consumer()
            if operation is not None and operation not in device:
                return True
        return False


class Operation:
    """One recorded call.

    Attributes:
        number: Grows in the order of the calls.
        function: What was called; None for a captured model.
        model: The captured model, None for a function.
        structure: Its arguments `(args, kwargs)` without the leaves.
        leaves: `Value`, `Input` or `Number` for every leaf.
        grad: Whether gradients were enabled.
        results: Weakly, the values it gives.
        line: Where it was called.
        problem: Why its values will never be known.
    """

    __slots__ = (
        "__weakref__",
        "done",
        "function",
        "grad",
        "leaves",
        "line",
        "model",
        "number",
        "problem",
        "results",
        "structure",
    )

    def __init__(
        self,
        function: Optional[Callable[..., Any]],
        model: Optional[CapturedModel],
        structure: Structure,
        leaves: Sequence[Any],
        grad: bool,
        line: Line,
    ) -> None:
        self.number = next(_NUMBERS)
        self.function = function
        self.model = model
        self.structure = structure
        self.leaves = tuple(leaves)
        self.grad = grad
        self.line = line
        self.results: List[weakref.ref[Value]] = []
        self.problem: Optional[str] = None
        self.done = False
        reference = weakref.ref(self)
        for leaf in self.leaves:
            if isinstance(leaf, Value):
                leaf.consumers.append(reference)

    @property
    def name(self) -> str:
        """What messages call it."""
        return "the model" if self.function is None else name_of(self.function)

    @property
    def computable(self) -> bool:
        """Whether the host can compute it from what is known."""
        if self.function is None or self.done:
            return False
        return all(leaf.known for leaf in self.leaves if isinstance(leaf, Value))

    def give(self, shapes: Sequence[Shape]) -> List[Value]:
        """Return the values of the results."""
        values = [Value(self, index, shape) for index, shape in enumerate(shapes)]
        self.results = [weakref.ref(value) for value in values]
        return values

    def compute(self) -> None:
        """Compute the results on the host, from values that are known."""
        leaves = [self._on_host(leaf) for leaf in self.leaves]
        args, kwargs = put_together(self.structure, leaves)
        assert self.function is not None
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            result = self.function(*args, **kwargs)
        tensors: List[torch.Tensor] = []
        take_apart(result, tensors)
        self.settle(tensors)

    def settle(self, tensors: Sequence[Optional[torch.Tensor]]) -> None:
        """Take over the results, and let go of what they were computed from."""
        for reference, tensor in zip(self.results, tensors):
            value = reference()
            if value is not None and tensor is not None:
                value.tensor = tensor if tensor.dtype == value.shape.dtype else tensor.to(value.shape.dtype)
        self.leaves = ()
        self.done = True

    def _on_host(self, leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return leaf.get()
        if isinstance(leaf, Input):
            leaf.check(self.line)
            return leaf.tensor
        return leaf.value


_WRITE_BACKS: List[Tuple[Value, torch.Tensor]] = []


def write_back(value: Value, target: torch.Tensor) -> None:
    """Write a value into a tensor of the host as soon as it is known."""
    _WRITE_BACKS.append((value, target))


def write_known() -> None:
    """Write the values that have become known where they were asked for."""
    if not _WRITE_BACKS:
        return
    waiting = []
    for value, target in _WRITE_BACKS:
        if value.known:
            with torch.no_grad():
                target.copy_(value.get())
        elif value.operation.problem is None:
            waiting.append((value, target))
    _WRITE_BACKS[:] = waiting


_SHAPES: Dict[Hashable, Tuple[Structure, List[Shape]]] = {}
_MOST_SHAPES = 4096


def infer_shapes(
    function: Callable[..., Any], structure: Structure, leaves: Sequence[Any], grad: bool, line: Line
) -> Tuple[Structure, List[Shape]]:
    """Return what a call gives, found by making it on the meta device the first time.

    Raises:
        CaptureError: The shape of a result depends on values, or the device could not compute the call.
    """
    key = (
        function,
        structure.key,
        grad,
        tuple([leaf.shape.key if not isinstance(leaf, Number) else float for leaf in leaves]),
    )
    found = _SHAPES.get(key)
    if found is None:
        if len(_SHAPES) >= _MOST_SHAPES:
            _SHAPES.clear()
        found = _SHAPES[key] = _inferred(function, structure, leaves, grad, line)
    return found


def _inferred(
    function: Callable[..., Any], structure: Structure, leaves: Sequence[Any], grad: bool, line: Line
) -> Tuple[Structure, List[Shape]]:
    metas = [leaf.value if isinstance(leaf, Number) else leaf.shape.meta() for leaf in leaves]
    storages = {meta.untyped_storage()._cdata for meta in metas if isinstance(meta, torch.Tensor)}
    args, kwargs = put_together(structure, metas)
    kwargs = {name: _META if isinstance(value, torch.device) else value for name, value in kwargs.items()}
    try:
        with torch.set_grad_enabled(grad), torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **kwargs)
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error).lower() and "data-dependent" not in str(error):
            raise
        raise CaptureError(
            f"{name_of(function)} at {shown(line)} needs values to know the shape of its result, and the step has not "
            "run yet. Keep shapes fixed (for example torch.where, or a mask that multiplies), or compute it after "
            f"optimizer.step(). ({type(error).__name__}: {error})"
        ) from error
    tensors: List[torch.Tensor] = []
    result_structure = take_apart(result, tensors)
    shapes = [Shape.of(tensor, tensor.requires_grad, tensor.untyped_storage()._cdata in storages) for tensor in tensors]
    return result_structure, shapes


def name_of(function: Callable[..., Any]) -> str:
    """Return what messages call a function of PyTorch's."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("_")


def _nobody() -> None:
    return None
