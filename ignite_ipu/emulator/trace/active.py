"""The trace that runs in this thread, and its tensors: a shape, a dtype and the device `ipu`, but no values."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import threading
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    NoReturn,
    Optional,
    Set,
    Tuple,
    TypeVar,
)

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.trace import isolation, number_formats
from ignite_ipu.emulator.values.structures import leaves
from ignite_ipu.torch_names.dispatch import saved_tensor_hooks, saved_tensor_hooks_left
from ignite_ipu.torch_names.modules import CALL
from ignite_ipu.torch_names.tensors import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    make_wrapper_subclass,
)
from ignite_ipu.torch_names.tensors import (
    memory_of as _address,
)

_Result = TypeVar("_Result")

IPU = torch.device("ipu", 0)
_OF_TENSORS: Any = torch.Tensor.__base__
TO = _OF_TENSORS.to
"""`Tensor.to`, PyTorch's own when somebody has replaced it, too."""
_ACTIVE = threading.local()


def active() -> Optional[Trace]:
    """Return the trace that runs in this thread, or None outside a traced forward."""
    return getattr(_ACTIVE, "trace", None)


@contextlib.contextmanager
def running(trace: Optional[Trace]) -> Iterator[None]:
    """Let `trace` be the one that runs in the `with` block."""
    before = active()
    _ACTIVE.trace = trace
    try:
        yield
    finally:
        _ACTIVE.trace = before


Follower = Tuple[List[Any], Callable[[nn.Module], Any]]
"""A list with an entry for each module that is being called, the innermost last, and the function that makes them."""


@contextlib.contextmanager
def module_calls_followed(*followers: Follower) -> Iterator[None]:
    """Keep entries for the modules that are called in the `with` block."""
    if not followers:
        yield
        return
    # PyTorch's hooks will not do: after a forward that raises, older versions call none, and newer ones not always.
    original: Any = getattr(nn.Module, CALL)

    @functools.wraps(original)
    def called(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return original(module, *args, **kwargs)
        entered: List[List[Any]] = []
        try:
            for calls, entry in followers:
                calls.append(entry(module))
                entered.append(calls)
            return original(module, *args, **kwargs)
        finally:
            for calls in entered:
                calls.pop()

    with isolation.replaced(nn.Module, CALL, called):
        yield


class IpuTensor(torch.Tensor):
    """A value of the graph being traced."""

    meta: torch.Tensor  # on torch's meta device; it answers every question about shape, dtype and gradients
    node: fx.Node  # the operator that produced the value, the latest one when operators work in place
    origin: fx.Node  # the operator that first produced it
    capture: Trace

    @staticmethod
    def __new__(cls, meta: torch.Tensor, node: fx.Node, capture: Trace) -> IpuTensor:
        with DisableTorchFunctionSubclass():
            tensor: IpuTensor = make_wrapper_subclass(
                cls, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=IPU, requires_grad=False
            )
        tensor.meta = meta
        tensor.node = tensor.origin = node
        tensor.capture = capture
        return tensor

    def __init__(self, meta: torch.Tensor, node: fx.Node, capture: Trace) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        own = next(value for value in leaves((args, kwargs)) if isinstance(value, IpuTensor))
        return own.capture.require_active().call(func, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The IPU, without a call for the trace: code that is traced may look at it before each operator."""
        self.capture.require_active()
        return IPU

    # Scripted functions and other C++ code reach the dispatcher without passing through PyTorch's Python API.
    __torch_dispatch__ = __torch_function__  # type: ignore[assignment]

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:  # type: ignore[override]
        return f"tensor(<unavailable>, size={tuple(self.meta.shape)}, dtype={self.meta.dtype}, device='{IPU}')"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        # As a call of PyTorch's Python API, which knows the values of some tensors.
        return str(torch.Tensor.__format__(self, spec))  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.meta)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.unbind(0))

    def __deepcopy__(self, memo: Any) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise backend_error("A tensor on the IPU cannot be pickled while the model is traced: it has no value yet.")


def getIpuTensorId(x: torch.Tensor) -> int:
    """Return the number of a tensor on the IPU, which is unique in its trace.

    Raises:
        Error: It is not on the IPU.
    """
    if not isinstance(x, IpuTensor):
        raise backend_error(
            f"Expected an IPU tensor, got one on {x.device}: only tensors of a traced forward have ids."
        )
    return 1 + list(x.capture.graph.nodes).index(x.origin)


@dataclasses.dataclass
class Placeholders:
    """The arguments of a graph, in this order, each by name."""

    inputs: Dict[str, IpuTensor] = dataclasses.field(default_factory=dict)
    weights: Dict[str, IpuTensor] = dataclasses.field(default_factory=dict)
    buffers: Dict[str, IpuTensor] = dataclasses.field(default_factory=dict)
    constants: Dict[fx.Node, torch.Tensor] = dataclasses.field(default_factory=dict)

    def nodes(self) -> List[fx.Node]:
        """Return the nodes of inputs, weights and buffers."""
        return [traced.origin for own in (self.inputs, self.weights, self.buffers) for traced in own.values()]


class TracedTensors:
    """The traced tensors of a trace, and the tensors of the model that they stand for.

    Attributes:
        stand_ins: The traced tensor for each tensor of the model, by the latter's id.
        by_meta: The traced tensor of each meta tensor, by the latter's id.
    """

    def __init__(self) -> None:
        self.stand_ins: Dict[int, IpuTensor] = {}
        self.by_meta: Dict[int, IpuTensor] = {}
        self._kept: List[Any] = []  # ids are of living objects only while these keep them alive

    def add(self, meta: torch.Tensor, node: fx.Node, capture: Trace) -> IpuTensor:
        """Return a new traced tensor."""
        self._kept.append(meta)
        traced = self.by_meta[id(meta)] = IpuTensor(meta, node, capture)
        return traced

    def stand_in(self, traced: IpuTensor, tensor: torch.Tensor) -> IpuTensor:
        """Let a traced tensor stand for a tensor of the model; returns the first."""
        self.stand_ins[id(tensor)] = traced
        self._kept.append(tensor)
        return traced

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the traced tensor that stands for `tensor`, or `tensor` itself where there is none."""
        return self.stand_ins.get(id(tensor), tensor)

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the IPU, or stands for one that is."""
        return isinstance(self.of(tensor), IpuTensor)

    def dtypes(self, value: Any) -> Set[torch.dtype]:
        """Return the types of the traced tensors in `value`."""
        found = (self.of(leaf) for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
        return {leaf.meta.dtype for leaf in found if isinstance(leaf, IpuTensor)}


class Writers:
    """The last operator that writes into each memory, by the memory's identity."""

    def __init__(self) -> None:
        self._last: Dict[int, fx.Node] = {}

    def add(self, memories: Iterable[int], node: fx.Node) -> None:
        """Have a node as the last writer of some memories."""
        self._last.update(dict.fromkeys(memories, node))

    def among(self, memories: Iterable[int]) -> List[fx.Node]:
        """Return the last writers of some memories."""
        return [self._last[memory] for memory in memories if memory in self._last]

    def wrote(self, node: fx.Node) -> bool:
        """Return whether some operator writes into the memory of the value that `node` produced."""
        return node.meta.get("memory") in self._last

    def vary(self, tensor: IpuTensor) -> bool:
        """Return whether a traced tensor depends on more than constants: it is not computed while compiling."""
        return may_vary(tensor.node) or any(map(may_vary, self.among([memory_of(tensor.meta)])))


class Trace(TorchFunctionMode, abc.ABC):
    """Record of one forward's results so far; `Capture` makes it."""

    def __init__(self, placement: Any, autocast: Any) -> None:
        super().__init__()
        self.placement = placement  # the execution strategy's setting for the block being traced
        self.autocast = autocast
        self.default_dtype = number_formats.default_of_trace()  # the program's own
        # Called with the nodes of the tensors that forward has returned, the options and the placement.
        self.checks: List[Callable[[List[fx.Node], Any, Any], None]] = []
        self.outer: Optional[Trace] = None  # the trace that this one is a loop body or branch of
        # The model holds its own tensors again in it, for code that runs on the host.
        self.host_tensors: Callable[[], ContextManager[None]] = contextlib.nullcontext
        self.watches_gradients = False  # whether some operator shows them, so that none may be scaled ahead of its time
        self.between_replicas = False  # whether some operator exchanges values between replicas
        self.multi_conv: Any = None
        self.graph = fx.Graph()
        self.placeholders = Placeholders()
        self.tensors = TracedTensors()
        self.writers = Writers()
        self.trained: Dict[
            str, Tuple[fx.Node, torch.Tensor]
        ] = {}  # weights that forward has frozen, as they were before
        self.training = True
        self.losses: List[fx.Node] = []
        self.unsupported: List[Any] = []
        self.warned: Dict[str, str] = {}  # the operator of each warning
        self.scope: List[str] = []  # the names that `NameScope` has open, innermost last
        self.location_excludes: Tuple[str, ...] = ()  # parts of the names of files that are not the user's code

    @abc.abstractmethod
    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Record one call of PyTorch's API, or answer it when it only asks about shapes and types."""

    @abc.abstractmethod
    def record(
        self, kernel: Callable[..., _Result], *args: Any, result: Optional[Callable[[], _Result]] = None, **kwargs: Any
    ) -> _Result:
        """Add one node that calls `kernel(*args, **kwargs)` on CPU tensors each time the graph runs.

        Gradients are those of autograd through the kernel. The results of `result`, or else of the kernel of meta
        tensors, are meta tensors like the kernel's result, which is returned with a traced tensor for each.
        """

    @abc.abstractmethod
    def add_constant(self, tensor: torch.Tensor, name: str = "constant") -> IpuTensor:
        """Return a traced tensor with the current value of `tensor`; later changes do not reach it."""

    @abc.abstractmethod
    def traced(self, value: Any) -> Any:
        """Return the traced tensor that a tensor stands for, and anything else as the graph keeps it.

        Raises:
            Error: It is a tensor of the host.
        """

    def require_active(self) -> Trace:
        """Return the trace that runs now: this one, or a body inside it."""
        tracing: Optional[Trace] = getattr(_ACTIVE, "trace", None)  # as `active`, for each look at a device
        current = tracing
        while current is not None and current is not self:
            current = current.outer
        if tracing is None or current is None:
            raise backend_error(
                "A tensor on the IPU was used after the trace it belongs to: its value is <unavailable> on the host. "
                "Return the values from forward."
            )
        return tracing

    def mark_loss(self, tensor: torch.Tensor) -> None:
        node = self.traced(tensor).node
        if node not in self.losses:
            self.losses.append(node)

    def outside(self) -> ContextManager[None]:
        """Return a context that runs its `with` block as ordinary PyTorch, unseen by the trace."""
        if not torch.is_inference_mode_enabled() and saved_tensor_hooks(False) is None:
            unseen: ContextManager[None] = DisableTorchFunction()
            return unseen
        return _outside_of_modes()


@contextlib.contextmanager
def _outside_of_modes() -> Iterator[None]:
    """Run the `with` block as ordinary PyTorch, where forward has entered inference mode itself or set hooks."""
    with DisableTorchFunction(), isolation.inference_mode_left(), saved_tensor_hooks_left():
        yield


def may_vary(node: fx.Node) -> bool:
    """Return whether a node depends on more than constants."""
    return bool(node.meta.get("varies", True))


def memory_of(meta: torch.Tensor) -> int:
    """Return the identity of a meta tensor's memory."""
    with DisableTorchFunction():
        return _address(meta)
