"""The trace that runs in this thread, and what its parts ask of it."""

from __future__ import annotations

import abc
import contextlib
import threading
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.trace import isolation, number_formats
from ignite_ipu.emulator.trace.traced_tensor import TO, IpuTensor
from ignite_ipu.emulator.values.nested import leaves

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


class Trace(TorchFunctionMode, abc.ABC):
    """Record of what one forward has computed so far; `Capture` makes it.

    Attributes:
        placement: Where the operators go: what the execution strategy says of the block being traced.
        graph: The nodes so far. Placeholders stand for inputs, weights, buffers and constants.
        inputs, weights, buffers, constants: Placeholder by name, in the order in which the graph takes them.
        constant_values: Values of the constants.
        trained: Node and shape of each weight that forward has frozen, as they were before that, by name.
        training: Whether the trace is of a training model.
        losses: Nodes of recognised losses.
        unsupported: Uses of operators that do not compile.
        warned: The operator of each warning about operators that was given.
        folds: Whether what depends on constants alone is computed while compiling.
        autocast: The automatic casts that are on.
        default_dtype: PyTorch's default type when the trace began, narrowed: the program's own.
        checks: What further must hold once forward has returned: called with its result, the options and the placement.
        outer: The trace that this one is a loop body or branch of.
        host_tensors: Context manager in which the model holds its own tensors again, for code that runs on the host.
        watches_gradients: Whether some operator shows gradients, so that none may be scaled ahead of its time.
        multi_conv: The `MultiConv` that is open.
        location_excludes: Parts of the names of files that are not the user's code.
        scope: The names that `NameScope` has open, innermost last.
    """

    def __init__(self, placement: Any, autocast: Any) -> None:
        super().__init__()
        self.placement = placement
        self.autocast = autocast
        self.default_dtype = number_formats.default_of_trace()
        self.checks: List[Callable[[Any, Any, Any], None]] = []
        self.outer: Optional[Trace] = None
        self.host_tensors: Callable[[], ContextManager[None]] = contextlib.nullcontext
        self.watches_gradients = False
        self.multi_conv: Any = None
        self.graph = fx.Graph()
        self.inputs: Dict[str, IpuTensor] = {}
        self.weights: Dict[str, IpuTensor] = {}
        self.buffers: Dict[str, IpuTensor] = {}
        self.constants: Dict[str, IpuTensor] = {}
        self.constant_values: Dict[fx.Node, torch.Tensor] = {}
        self.trained: Dict[str, Tuple[fx.Node, torch.Tensor]] = {}
        self.training = True
        self.losses: List[fx.Node] = []
        self.unsupported: List[Any] = []
        self.warned: Dict[str, str] = {}
        self.folds = True
        self.scope: List[str] = []
        self.location_excludes: Tuple[str, ...] = ()
        self._stand_ins: Dict[int, IpuTensor] = {}
        self._by_meta: Dict[int, IpuTensor] = {}
        self._kept: List[Any] = []  # ids above are of living objects only while these keep them alive
        self._writers: Dict[int, fx.Node] = {}

    @abc.abstractmethod
    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Record one call of PyTorch's API, or answer it when it only asks about shapes and types."""

    @abc.abstractmethod
    def record(self, kernel: Callable[..., Any], *args: Any, result: Any = None, **kwargs: Any) -> Any:
        """Add one node that calls `kernel(*args, **kwargs)` on CPU tensors each time the graph runs.

        Args:
            kernel: A function of tensors; differentiable by autograd where gradients matter.
            result: Meta tensors like the kernel's result; None finds them by running the kernel on meta tensors.

        Returns:
            The result with a traced tensor for every tensor.
        """

    @abc.abstractmethod
    def add_constant(self, tensor: torch.Tensor, name: str = "constant") -> IpuTensor:
        """Return a traced tensor whose value is `tensor`'s of now, whatever becomes of it later."""

    @abc.abstractmethod
    def traced(self, value: Any) -> Any:
        """Return the traced tensor that a tensor stands for, and anything else as the graph keeps it.

        Raises:
            Error: It is a tensor of the host.
        """

    def require_active(self) -> Trace:
        """Return the trace that runs now: this one, or a body inside it."""
        current = tracing = active()
        while current is not None and current is not self:
            current = current.outer
        if tracing is None or current is None:
            raise backend_error(
                "A tensor on the IPU was used after the trace it belongs to: its value is <unavailable> on the host. "
                "Return what you need from forward."
            )
        return tracing

    def mark_loss(self, tensor: IpuTensor) -> None:
        if tensor.node not in self.losses:
            self.losses.append(tensor.node)

    def stood_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the traced tensor that stands for `tensor`, or `tensor` itself where there is none."""
        return self._stand_ins.get(id(tensor), tensor)

    def is_traced(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor is on the IPU, or stands for one that is."""
        return isinstance(self.stood_in(tensor), IpuTensor)

    def dtypes_of(self, value: Any) -> Set[torch.dtype]:
        """Return the types of the traced tensors in `value`."""
        found = (self.stood_in(leaf) for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
        return {leaf.meta.dtype for leaf in found if isinstance(leaf, IpuTensor)}

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return `tensor` in another type, with the cast recorded where it is needed."""
        if self.dtypes_of(tensor) == {dtype}:
            return tensor
        result: torch.Tensor = self.record(TO, tensor, dtype)
        return result

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """Run the `with` block as ordinary PyTorch, unseen by the trace."""
        # A forward may enter inference mode itself, and set hooks.
        with torch._C.DisableTorchFunction(), isolation.inference_mode_left(), isolation.saved_tensor_hooks_left():
            yield

    def varies(self, tensor: IpuTensor) -> bool:
        """Tell whether a traced tensor depends on more than constants: it is not computed while compiling."""
        last = self._writers.get(memory_of(tensor.meta))
        return may_vary(tensor.node) or (last is not None and may_vary(last))

    def is_written(self, node: fx.Node) -> bool:
        """Tell whether some operator writes into the memory of the value that `node` produced."""
        return node.meta.get("memory") in self._writers


def may_vary(node: fx.Node) -> bool:
    """Tell whether a node depends on more than constants."""
    return bool(node.meta.get("varies", True))


def memory_of(meta: torch.Tensor) -> int:
    """Return what tells the memory of a meta tensor from others'."""
    with torch._C.DisableTorchFunction():
        return int(meta.untyped_storage()._cdata)
