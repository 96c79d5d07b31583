"""The tensor that a model sees while it is traced: a shape, a dtype and the device `ipu`, but no values."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, NoReturn, Optional, Protocol, Sequence, Tuple

import torch
from torch import fx

from ignite_ipu.emulator.errors import Refusal, backend_error
from ignite_ipu.emulator.trace import call_sites
from ignite_ipu.emulator.values.nested import leaves

IPU = torch.device("ipu", 0)
_OF_TENSORS: Any = torch.Tensor.__base__
TO = _OF_TENSORS.to
"""`Tensor.to`, PyTorch's own when somebody has replaced it, too."""


class Recorder(Protocol):
    """The trace that a traced tensor belongs to, as far as the tensor needs it."""

    graph: fx.Graph

    def require_active(self) -> Recorder: ...

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any: ...


class IpuTensor(torch.Tensor):
    """A value of the graph being traced.

    Attributes:
        meta: Tensor on torch's meta device that answers every question about shape, dtype and gradients.
        node: The operator that produced the value, the latest one when operators work in place.
        origin: The operator that first produced it.
    """

    meta: torch.Tensor
    node: fx.Node
    origin: fx.Node
    capture: Recorder

    @staticmethod
    def __new__(cls, meta: torch.Tensor, node: fx.Node, capture: Recorder) -> IpuTensor:
        with torch._C.DisableTorchFunctionSubclass():
            tensor: IpuTensor = torch.Tensor._make_wrapper_subclass(
                cls, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=IPU, requires_grad=False
            )
        tensor.meta = meta
        tensor.node = tensor.origin = node
        tensor.capture = capture
        return tensor

    def __init__(self, meta: torch.Tensor, node: fx.Node, capture: Recorder) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _capture_of(args, kwargs).call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Scripted functions and other C++ code reach the dispatcher without passing through PyTorch's Python API.
        return _capture_of(args, kwargs).call(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:  # type: ignore[override]
        return f"tensor(<unavailable>, size={tuple(self.meta.shape)}, dtype={self.meta.dtype}, device='{IPU}')"

    def __str__(self) -> str:
        return repr(self)

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __len__(self) -> int:
        return len(self.meta)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.unbind(0))

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise backend_error("A tensor on the IPU cannot be pickled while the model is traced: it has no value yet.")


def needs_value(what: str) -> Exception:
    """Return the error for an operation that asks a traced tensor for its value, with the line that does."""
    place, remedy = call_sites.of_read()
    return backend_error(
        f"{what} is only supported in eager mode: it needs the value of a tensor that is on the IPU, and while the "
        f"model is traced there are no values. It is called {place}. {remedy}",
        kind=Refusal.HOST_READ,
    )


def _capture_of(args: Any, kwargs: Any) -> Recorder:
    for value in leaves((args, kwargs)):
        if isinstance(value, IpuTensor):
            return value.capture.require_active()
    raise AssertionError("a traced tensor was expected among the arguments")
