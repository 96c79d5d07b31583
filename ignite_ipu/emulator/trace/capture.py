"""One traced run of a model's forward: its operations become a graph, everything else is frozen.

While a `Capture` is active, PyTorch hands every call of its Python API to it. A call that touches a tensor on the IPU
is recorded as one node. Its result is another tensor on the IPU, with the shape that the same call gives on the meta
device. So the graph holds the operators as PyTorch's Python API names them; run on CPU tensors they use the kernels
that ordinary PyTorch would.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch
from torch import fx
from torch.autograd.function import FunctionCtx
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.hooks import BackwardHook

from ignite_ipu.emulator.errors import Refusal, backend_error
from ignite_ipu.emulator.trace import calls, number_formats, operators, type_inference
from ignite_ipu.emulator.trace.active import IPU, TO, IpuTensor, Trace, active, may_vary, memory_of, running
from ignite_ipu.emulator.trace.autocasting import Autocast, Policy
from ignite_ipu.emulator.trace.call_sites import ACCESSORS, here, identifier, name_of, source
from ignite_ipu.emulator.trace.isolation import Turn, replaced
from ignite_ipu.emulator.trace.number_formats import NORMALISATIONS, in_float, in_strided_groups
from ignite_ipu.emulator.trace.refusals import checkpoint_refused, foreign, refuse, refuse_differentiation
from ignite_ipu.emulator.values.structures import frozen, holds_tensors, leaves, like, map_leaves
from ignite_ipu.operators import table
from ignite_ipu.torch_names.dispatch import set_grad_enabled
from ignite_ipu.torch_names.modules import SET_UP_OF_BACKWARD_HOOKS, VALIDATION_FLAG
from ignite_ipu.torch_names.tensors import mark_as_parameter, version_of

# A trace replaces attributes of PyTorch for the whole process: threads trace one after the other.
_TURN = Turn()
_META = torch.device("meta")
_CPU = torch.device("cpu")

_ANSWERS = {"device": IPU, "is_ipu": True, "is_meta": False, "grad": None}
_TENSOR_VALUED_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))


@dataclasses.dataclass(frozen=True)
class Precision:
    """Number formats and checks that the options of one program ask for.

    The types of partial sums stay in the options: on a CPU they have no meaning.
    """

    policy: Optional[Policy] = dataclasses.field(default_factory=Policy)  # None forbids autocasting
    floating_point_exceptions: bool = False
    stochastic_rounding: bool = False
    strided_groups: bool = False  # whether group normalisation takes every G-th channel for one of its G groups


class Capture(Trace):
    """The trace of one forward."""

    def __init__(self, placement: Any, precision: Optional[Precision] = None) -> None:
        self.precision = precision if precision is not None else Precision()
        super().__init__(placement, Autocast(self.precision.policy))
        self._grad_mode = True

    def add_input(self, name: str, tensor: torch.Tensor) -> IpuTensor:
        self.placeholders.inputs[name] = self._placeholder(f"input_{name}", tensor, requires_grad=False)
        return self.placeholders.inputs[name]

    def add_weight(self, name: str, tensor: torch.Tensor, requires_grad: bool, shown: torch.Tensor) -> IpuTensor:
        """Return the traced stand-in for a parameter, shaped like `shown`; later uses of `tensor` mean the stand-in."""
        self.placeholders.weights[name] = self.tensors.stand_in(self._placeholder(name, shown, requires_grad), tensor)
        mark_as_parameter(self.placeholders.weights[name])
        return self.placeholders.weights[name]

    def add_buffer(self, name: str, tensor: torch.Tensor) -> IpuTensor:
        self.placeholders.buffers[name] = self.tensors.stand_in(
            self._placeholder(name, tensor, requires_grad=False), tensor
        )
        return self.placeholders.buffers[name]

    def add_constant(self, tensor: torch.Tensor, name: str = "constant") -> IpuTensor:
        with self.outside():
            value = torch.Tensor.detach(tensor).to(number_formats.narrow(tensor.dtype)).clone()
        traced = self.tensors.stand_in(self._placeholder(name, value, requires_grad=False), tensor)
        traced.node.meta["varies"] = False
        self.placeholders.constants[traced.origin] = value
        return traced

    def _placeholder(self, name: str, tensor: torch.Tensor, requires_grad: bool) -> IpuTensor:
        node = self.graph.placeholder(identifier(name))
        node.target = node.name
        if tensor.dtype in number_formats.LACKED and operators.strict():
            raise backend_error(
                f"Unsupported type {tensor.dtype} of {node.name}: the device has no such numbers. Convert it on the "
                "host.",
                kind=Refusal.NUMBER_FORMAT,
            )
        with self.outside():
            dtype = number_formats.narrow(tensor.dtype)
            meta = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=dtype, device=_META)
            meta.requires_grad_(requires_grad and meta.is_floating_point())
        if meta.numel() == 0:
            raise backend_error(f"Zero-sized tensors are unsupported: {node.name} has shape {tuple(meta.shape)}.")
        return self._traced(meta, node)

    @contextlib.contextmanager
    def tracing(self, training: bool) -> Iterator[None]:
        """Record the calls made in the `with` block; gradients are recorded too when `training`."""
        if active() is not None:
            raise backend_error("A model is already being traced in this thread: forward may not call a wrapped model.")
        self._grad_mode = self.training = training
        with _TURN.lock, running(self), replaced(torch.distributions.Distribution, VALIDATION_FLAG, False):
            # Distributions would ask for values, to validate them.
            with torch.set_grad_enabled(training), _forward_only(), _range_noticed(), self:
                yield
            self._follow_grad_mode(training)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Tuple[Any, ...] = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        return self.call(func, args, calls.found_again(func, args, kwargs or {}))

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        refuse_differentiation()
        func = calls.original_of(func)
        name = name_of(func)
        if getattr(func, "__name__", "") in ACCESSORS:
            return self._property(func, name, args)
        if name == "__format__":
            return repr(args[0])
        if name == "type":  # the class of PopTorch's own tensors in a trace
            args = tuple([torch.Tensor if each is IpuTensor else each for each in args])
        if name == "ipu":
            func, name, args, kwargs = TO, "to", (args[0], IPU), {}
        if not any(isinstance(leaf, torch.Tensor) and self.tensors.has(leaf) for leaf in leaves((args, kwargs))):
            placed = calls.put_on_ipu(self, func, name, args, kwargs)
            if placed is not None:
                return placed
            with self.outside():
                return func(*args, **kwargs)
        refuse(name, args, kwargs)
        if calls.is_traced_by_parts(self, func, (args, kwargs)):
            return calls.unfolded(func)(*args, **kwargs)
        if name == "requires_grad_" or (name == "detach_" and self._weight_name(args[0]) is not None):
            self._set_requires_grad(args[0], name == "requires_grad_" and bool([*args[1:], *kwargs.values(), True][0]))
            return self.traced(args[0])
        if name in calls.MOVES:
            answer = calls.moved(self, self.tensors.of(args[0]), args[1:], kwargs)
            if answer is not None:
                return answer
        args, kwargs = calls.rewritten(self, name, args, kwargs)
        if func in NORMALISATIONS and len(self.tensors.dtypes((args, kwargs)) & {torch.float16, torch.float32}) > 1:
            func = in_float(func)
        if func is torch.nn.functional.group_norm and self.precision.strided_groups:
            func = in_strided_groups(func)
        result = self.record(type_inference.fixed(name, func), *args, **kwargs)
        if calls.is_loss(name, args, kwargs):
            self.mark_loss(result)
        return result

    def record(
        self, kernel: Callable[..., Any], *args: Any, result: Optional[Callable[[], Any]] = None, **kwargs: Any
    ) -> Any:
        with self.outside(), number_formats.by_default(number_formats.default_of_trace()):
            return self._record(kernel, args, kwargs, None if result is None else result())

    def _record(self, kernel: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Any) -> Any:
        args, kwargs = map_leaves((args, kwargs), self.traced)
        metas: List[IpuTensor] = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, IpuTensor)]
        before = [version_of(traced.meta) for traced in metas]
        name, kinds = name_of(kernel), set()  # type: str, Set[str]
        inferred = result is None
        if inferred:
            result = self._infer(kernel, args, kwargs, kinds)
            if number_formats.is_wide(result):
                kernel, result = number_formats.narrowing(kernel), number_formats.narrowed(result)
            default = torch.get_default_dtype()
            if default is not self.default_dtype:  # forward changed it
                kernel = number_formats.with_default(kernel, default)
        written = [traced for traced, version in zip(metas, before) if version_of(traced.meta) != version]
        for traced in written:
            if name != "__setitem__":
                operators.check_write(self, traced, *metas)
        written += calls.hidden_writes(name_of(kernel), args, kwargs)
        if not written and not holds_tensors(result):
            return result
        node = self._node(kernel, args, kwargs)
        reads = {memory_of(traced.meta) for traced in metas}
        node.meta["after"] = self.writers.among(reads)
        sources = (*node.all_input_nodes, *node.meta["after"])
        node.meta["varies"] = self.outer is not None or table.is_random(name) or any(map(may_vary, sources))
        node.meta["writes"] = {memory_of(traced.meta) for traced in written}
        node.meta["dtypes"] = map_leaves(result, lambda leaf: getattr(leaf, "dtype", None))
        node.meta["memories"] = [memory_of(leaf) for leaf in leaves(result) if isinstance(leaf, torch.Tensor)]
        changed = [*leaves(result), *(traced.meta for traced in written)]
        needs_grad = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in changed)
        node.meta["differentiable"] = needs_grad or not inferred
        operators.note(self, name, node, kinds)
        self.writers.add(node.meta["writes"], node)
        return self._wrap(result, node)

    def _infer(self, kernel: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any], kinds: Set[str]) -> Any:
        args, kwargs = map_leaves((args, kwargs), _to_meta)
        if "device" in kwargs:
            kwargs["device"] = _META
        with self.outside():
            return type_inference.INFERENCES.infer(kernel, args, kwargs, kinds)

    def _node(self, kernel: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> fx.Node:
        self._follow_grad_mode(torch.is_grad_enabled())
        args, kwargs = map_leaves((args, kwargs), _to_node)
        if kwargs.get("device") is not None:
            kwargs["device"] = _CPU
        name = name_of(kernel)
        node = self.graph.create_node("call_function", kernel, args, kwargs, name=identifier(name))
        node.meta["operator"] = name
        node.meta["site"] = self.placement.site
        node.meta["scope"] = "/".join(filter(None, self.scope))
        node.meta["source"] = source(self.location_excludes)
        return node

    def _wrap(self, result: Any, node: fx.Node) -> Any:
        if isinstance(result, torch.Tensor):
            known = self.tensors.by_meta.get(id(result))
            if known is not None:
                # An in-place operator returned its argument: from here on the node is that tensor's value.
                known.node = node
                _describe(node, result)
                return known
            return self._traced(result, node)
        if isinstance(result, (list, tuple)) and holds_tensors(result):
            items = []
            for index, item in enumerate(result):
                if holds_tensors(item):
                    child = self.graph.create_node("call_function", operator.getitem, (node, index), {})
                    child.meta.update(node.meta, after=[], writes=set(), part=True)
                    items.append(self._wrap(item, child))
                else:
                    items.append(item)
            return like(result, items)
        return result

    def _traced(self, meta: torch.Tensor, node: fx.Node) -> IpuTensor:
        _describe(node, meta)
        return self.tensors.add(meta, node, self)

    def traced(self, value: Any) -> Any:
        if isinstance(value, IpuTensor):
            if value.capture is not self:
                value.capture.require_active()
            return value
        if isinstance(value, torch.Tensor):
            known = self.tensors.stand_ins.get(id(value))
            if known is not None:
                return known
            with self.outside():
                raise foreign(value)
        return number_formats.narrow(value) if isinstance(value, torch.dtype) else frozen(value)

    def _property(self, func: Any, name: str, args: Tuple[Any, ...]) -> Any:
        tensor = self.tensors.of(args[0])
        if not isinstance(tensor, IpuTensor):
            with self.outside():
                return func(*args)
        if func.__name__ == "__set__":
            if name == "grad" and args[1] is None:
                return None
            if name != "requires_grad":
                raise backend_error(
                    f"Assigning to tensor.{name} is not supported in a traced model, {here()}: use copy_()."
                )
            self._set_requires_grad(tensor, args[1])
            return None
        if name in _ANSWERS:
            return _ANSWERS[name]
        if name in _TENSOR_VALUED_PROPERTIES:
            return self.record(getattr, tensor, name)
        with self.outside():
            return number_formats.as_read(func(tensor.meta))

    def _set_requires_grad(self, tensor: torch.Tensor, value: bool) -> None:
        """Let gradients flow to a traced tensor from here on, or not; the user's parameters keep their own setting.

        A weight on the device is trained or not. After forward has switched its gradient off, later operations read it
        detached, until forward switches the gradient on again.
        """
        traced: IpuTensor = self.traced(tensor)
        weight = self._weight_name(traced) if self.training else None
        with self.outside():
            before = traced.meta.requires_grad
            if weight is None:
                traced.meta.requires_grad_(value)
        if weight is None or value == before:
            return
        if not value:
            self.trained[weight] = (traced.node, traced.meta)
            detached = self.record(torch.Tensor.detach, traced)
            self._replace(traced, detached.node, detached.meta)
        elif weight in self.trained:
            self._replace(traced, *self.trained[weight])
        else:
            raise backend_error(
                f"forward sets requires_grad of {weight}, which was False when the model was wrapped: which weights "
                "are trained is compiled in. Call requires_grad_(True) on it before."
            )

    def _weight_name(self, tensor: torch.Tensor) -> Optional[str]:
        traced = self.traced(tensor)
        return next((name for name, weight in self.placeholders.weights.items() if weight is traced), None)

    def _replace(self, tensor: IpuTensor, node: fx.Node, meta: torch.Tensor) -> None:
        tensor.node, tensor.meta = node, meta
        self.tensors.by_meta[id(meta)] = tensor

    def _follow_grad_mode(self, enabled: bool) -> None:
        if enabled != self._grad_mode and self.training:
            self.graph.create_node("call_function", set_grad_enabled, (enabled,), {})
        self._grad_mode = enabled


def _describe(node: fx.Node, meta: torch.Tensor) -> None:
    node.meta["shape"], node.meta["dtype"] = tuple(meta.shape), meta.dtype
    node.meta["memory"] = memory_of(meta)


def _to_meta(value: Any) -> Any:
    if isinstance(value, IpuTensor):
        return value.meta
    return _META if calls.names_ipu(value) else value


def _to_node(value: Any) -> Any:
    if isinstance(value, IpuTensor):
        return value.node
    return _CPU if isinstance(value, torch.device) and value.type == "ipu" else value


@contextlib.contextmanager
def _range_noticed() -> Iterator[None]:
    """Let `torch.range` report its calls to the running trace; it is the one factory that does not."""
    original = torch.range

    def called(*args: Any, **kwargs: Any) -> Any:
        trace = active()
        return original(*args, **kwargs) if trace is None else trace.call(original, args, kwargs)

    with replaced(torch, "range", called):
        yield


@contextlib.contextmanager
def _forward_only() -> Iterator[None]:
    """Make `Function.apply` run nothing but the forward in the `with` block, and modules set no backward hooks up.

    The device has a backward pass of its own, which runs no code of the user's.
    """
    original = torch.autograd.Function.__dict__["apply"]
    set_up_hook: Any = getattr(BackwardHook, SET_UP_OF_BACKWARD_HOOKS)

    def called(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if active() is None:
            return original.__get__(None, cls)(*args, **kwargs)
        if cls is CheckpointFunction and torch.is_grad_enabled():
            raise checkpoint_refused()  # its forward takes no gradients: those are of its backward, which never runs
        if cls.setup_context is torch.autograd.Function.setup_context:
            args = (_Context(), *args)
        return cls.forward(*args, **kwargs)

    def set_up(hook: BackwardHook, function: Any, args: Any) -> Any:
        return set_up_hook(hook, function, args) if active() is None else (args, None)

    with replaced(torch.autograd.Function, "apply", classmethod(called)):
        with replaced(BackwardHook, SET_UP_OF_BACKWARD_HOOKS, set_up):
            yield


class _Context(FunctionCtx):
    """Takes the tensors that a forward keeps for the backward."""

    needs_input_grad: Tuple[bool, ...] = ()

    @property
    def saved_tensors(self) -> Tuple[torch.Tensor, ...]:
        return getattr(self, "to_save", ())
