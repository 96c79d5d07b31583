"""Running a model's forward once, on the IPU, to capture its graph; the model is restored whatever happens."""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import fx, nn

from ignite_ipu.emulator.compiler.batching import Batching
from ignite_ipu.emulator.compiler.graph import Fold, Graph, build, fold_constants, live
from ignite_ipu.emulator.compiler.naming import DEFAULT as DEFAULT_NAMING
from ignite_ipu.emulator.compiler.naming import Naming, module_scopes
from ignite_ipu.emulator.errors import Refusal, backend_error, python_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.trace import call_sites, losses
from ignite_ipu.emulator.trace.active import active
from ignite_ipu.emulator.trace.capture import Capture
from ignite_ipu.emulator.trace.explanations import explained
from ignite_ipu.emulator.trace.operators import support
from ignite_ipu.emulator.trace.precision import Precision
from ignite_ipu.emulator.trace.refusals import refuse_compiled_modules
from ignite_ipu.emulator.trace.traced_tensor import IpuTensor
from ignite_ipu.emulator.values.arguments import Arguments
from ignite_ipu.emulator.values.custom_types import flatten_tensors, map_tensors
from ignite_ipu.emulator.values.wrapping import plain

Hook = Callable[[], None]
_PRE_COMPILE: Dict[int, Hook] = {}
_POST_COMPILE: Dict[int, Hook] = {}
_HANDLES = itertools.count()

# Slots of a module that hold its own tensors, as (dictionary, name).
_Slot = Tuple[Dict[str, Any], str]


class HookHandle:
    """Removes the hook it was returned for."""

    def __init__(self, hooks: Dict[int, Hook], number: int) -> None:
        self._hooks, self._number = hooks, number

    def remove(self) -> None:
        """Forget the hook; a second call does nothing."""
        self._hooks.pop(self._number, None)


def registerPreCompileHook(hook: Hook) -> HookHandle:
    """Call `hook()` before any executor's forward is traced.

    Raises:
        RuntimeError: `hook` is not callable.
    """
    return _register(_PRE_COMPILE, hook)


def registerPostCompileHook(hook: Hook) -> HookHandle:
    """Call `hook()` after any executor's forward was traced, also when that failed.

    Raises:
        RuntimeError: `hook` is not callable.
    """
    return _register(_POST_COMPILE, hook)


def isRunningOnIpu() -> bool:
    """Tell whether a wrapped model's forward is being traced in this thread."""
    return active() is not None


def trace(
    model: nn.Module,
    arguments: Arguments,
    batching: Batching,
    placement: Any,
    training: bool,
    per_replica: Sequence[str] = (),
    anchors: Sequence[str] = (),
    precision: Optional[Precision] = None,
    fold: Optional[Fold] = None,
    naming: Naming = DEFAULT_NAMING,
) -> Tuple[Graph, Capture]:
    """Run `forward` once on the first micro-batch's shapes and return the graph.

    Args:
        model: The module to trace. Its parameters and buffers are on the IPU while forward runs.
        placement: Where the execution strategy puts operators.
        training: Whether a loss is looked for and gradients are recorded.
        per_replica: Parameters whose leading dimension is the group of replicas.
        anchors: Names of further tensors to return.
        precision: Number formats and checks; None takes the defaults.
        fold: Provides what depends on constants alone; None computes it.
        naming: What operators are called after.

    Raises:
        Error: What forward does cannot be compiled, or it replaced a parameter or buffer; or one of these is lazy or
            on another device than the CPU.
    """
    refuse_compiled_modules(model)
    capture = Capture(placement, precision)
    capture.location_excludes = naming.excludes
    with _compile_hooks():
        stand_ins, slots = _move_to_ipu(capture, model, training, per_replica)
        inputs = _traced_inputs(capture, arguments, batching)
        try:
            for (tensors, name), original in slots.items():
                tensors[name] = stand_ins[id(original)]
            capture.host_tensors = functools.partial(_on_host, slots)
            with contextlib.ExitStack() as stack:
                stack.enter_context(explained())
                stack.enter_context(capture.tracing(training))
                stack.enter_context(capture.autocast.module_calls())
                stack.enter_context(module_scopes(capture, model, naming))
                structure = call_sites.called(model, naming.excludes, inputs.positional, inputs.keyword)
        finally:
            replaced = _restore(slots, stand_ins)
            added = taken_off(model)
    _check_identity(model, replaced)
    support.check(capture, live(capture, structure, capture.losses))
    structure = _host_outputs(structure)
    if not any(isinstance(leaf, IpuTensor) for leaf in flatten_tensors(structure)) and not training:
        logger.debug("The model returns nothing that is computed on the IPU.")
    loss = losses.final_loss(capture.losses) if training else None
    if loss is not None:
        support.check_loss(capture, loss)
    graph = build(capture, structure, loss, _anchored(capture, anchors), fold)
    put_back(added, lambda: fold_constants(capture, _buffers_on_host(capture, model)))
    return graph, capture


def tensors_by_name(capture: Capture) -> Dict[str, Any]:
    """Return the nodes of the graph's tensors in the order in which they are computed.

    Parameters and buffers have the names that the model knows them by, other tensors those of their nodes.
    """
    return {node.meta.get("name", node.name): node for node in capture.graph.nodes if "memory" in node.meta}


def _register(hooks: Dict[int, Hook], hook: Hook) -> HookHandle:
    if not callable(hook):
        raise RuntimeError(f"A compile hook must be callable, got {hook!r}.")
    number = next(_HANDLES)
    hooks[number] = hook
    return HookHandle(hooks, number)


@contextlib.contextmanager
def _compile_hooks() -> Iterator[None]:
    for hook in list(_PRE_COMPILE.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_POST_COMPILE.values()):
            hook()


def _move_to_ipu(
    capture: Capture, model: nn.Module, training: bool, per_replica: Sequence[str]
) -> Tuple[Dict[int, IpuTensor], Dict[_Slot, torch.Tensor]]:
    """Make a stand-in for every parameter and buffer, and list the places where they are registered."""
    stand_ins: Dict[int, IpuTensor] = {}
    slots: Dict[Any, torch.Tensor] = {}
    found: List[Tuple[_Slot, torch.Tensor]] = []
    for prefix, module in model.named_modules():
        own = module.__dict__
        for kind in ("_parameters", "_buffers"):
            for name, tensor in own[kind].items():
                if tensor is None:
                    continue
                found.append(((own[kind], name), tensor))
                if id(tensor) not in stand_ins:
                    full_name = f"{prefix}.{name}" if prefix else name
                    stand_ins[id(tensor)] = _stand_in(capture, full_name, tensor, kind, training, per_replica)
    for slot, tensor in found:
        slots[_Place(*slot)] = tensor
    return stand_ins, slots


class _Place(Tuple[Dict[str, Any], str]):
    """A slot, compared by the identity of its dictionary."""

    def __new__(cls, tensors: Dict[str, Any], name: str) -> _Place:
        return super().__new__(cls, (tensors, name))

    def __hash__(self) -> int:
        return hash((id(self[0]), self[1]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place) and self[0] is other[0] and self[1] == other[1]


def _stand_in(
    capture: Capture, name: str, tensor: torch.Tensor, kind: str, training: bool, per_replica: Sequence[str]
) -> IpuTensor:
    _check_on_host(name, tensor)
    traced = _traced_state(capture, name, tensor, kind, training, per_replica)
    traced.origin.meta["name"] = name
    return traced


def _traced_state(
    capture: Capture, name: str, tensor: torch.Tensor, kind: str, training: bool, per_replica: Sequence[str]
) -> IpuTensor:
    host = plain(tensor)
    if not host.is_floating_point():
        logger.warning("%s is of type %s: it was downgraded to constant, its value is compiled in.", name, host.dtype)
        return capture.add_constant(tensor, name)
    if kind == "_buffers":
        return capture.add_buffer(name, tensor)
    shown = host[0] if name in per_replica else host
    with torch._C.DisableTorchFunctionSubclass():
        requires_grad = training and bool(torch.Tensor.requires_grad.__get__(tensor))  # type: ignore[attr-defined]
    return capture.add_weight(name, tensor, requires_grad, shown)


def _check_on_host(name: str, tensor: torch.Tensor) -> None:
    if nn.parameter.is_lazy(tensor):
        raise python_error(
            f"{name} is uninitialized: a lazy module takes its shape from the first batch, and shapes are compiled in. "
            "Call the model once on the host before you wrap it."
        )
    if not tensor.is_cpu:
        raise python_error(
            f"{name} is on the device {str(tensor.device)!r}: the executor moves the model from the CPU to the IPU "
            "itself. Leave the model on the CPU, or call .cpu() on it."
        )


def _buffers_on_host(capture: Capture, model: nn.Module) -> Dict[Any, torch.Tensor]:
    host = dict(model.named_buffers())
    return {traced.origin: plain(host[name]) for name, traced in capture.buffers.items()}


def _traced_inputs(capture: Capture, arguments: Arguments, batching: Batching) -> Arguments:
    names = iter([name for name, _ in arguments.named_tensors()])

    def traced(tensor: torch.Tensor) -> torch.Tensor:
        name = next(names)
        shape = batching.micro_batch_shape(name, tensor)
        return capture.add_input(name, torch.empty(shape, dtype=tensor.dtype, device="meta"))

    positional, keyword = map_tensors((arguments.positional, arguments.keyword), traced)
    return Arguments(positional, keyword, arguments.names)


def _restore(slots: Dict[Any, torch.Tensor], stand_ins: Dict[int, IpuTensor]) -> List[Tuple[_Slot, str]]:
    """Put the tensors back, and return the slots that forward changed, with what became of them."""
    replaced: List[Tuple[_Slot, str]] = []
    for (tensors, name), original in slots.items():
        if name not in tensors:
            replaced.append(((tensors, name), "removed from"))
        elif tensors[name] is not stand_ins[id(original)]:
            replaced.append(((tensors, name), "reassigned within"))
        tensors[name] = original
    return replaced


@contextlib.contextmanager
def _on_host(slots: Dict[Any, torch.Tensor]) -> Iterator[None]:
    """Give the model its own tensors in the `with` block, and those of the trace after it."""
    traced = {place: place[0][place[1]] for place in slots}
    for (tensors, name), original in slots.items():
        tensors[name] = original
    try:
        yield
    finally:
        for (tensors, name), tensor in traced.items():
            tensors[name] = tensor


def _check_identity(model: nn.Module, replaced: List[Tuple[_Slot, str]]) -> None:
    for (tensors, name), change in replaced:
        for prefix, module in model.named_modules():
            own = module.__dict__
            kind = "Buffer" if own["_buffers"] is tensors else "Parameter" if own["_parameters"] is tensors else None
            if kind is None:
                continue
            if kind == "Buffer" and isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
                continue
            full_name = f"{prefix}.{name}" if prefix else name
            raise python_error(
                f"{kind} {full_name} is {change} the model when its forward is called. The device keeps one "
                "tensor for it: change it in place instead, for example with copy_().",
                Refusal.REPLACED_TENSOR,
            )


def _host_outputs(structure: Any) -> Any:
    """Warn of outputs that are not on the IPU, and freeze them."""

    def freeze(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, IpuTensor):
            return tensor
        import warnings

        warnings.warn(
            "Output expected to be on the IPU but it is on the CPU: its value of the trace is returned on every call.",
            stacklevel=2,
        )
        return plain(tensor).clone()

    return map_tensors(structure, freeze)


def _anchored(capture: Capture, anchors: Sequence[str]) -> Dict[str, Any]:
    by_name = tensors_by_name(capture)
    missing = [name for name in anchors if name not in by_name]
    if missing:
        raise backend_error(
            f"Unknown tensor to anchor: {missing[0]!r}. The graph's tensors are {sorted(by_name)[:40]}; "
            "getTensorNames() lists them all after a compile."
        )
    return {name: by_name[name] for name in anchors}


class AddedTensor(NamedTuple):
    """A parameter or buffer that forward registered while it was traced: a mask made in the first call, for example.

    Such tensors are values of the graph, and would stay in the model as tensors that nobody can read, save or trace
    again.
    """

    name: str
    slot: str
    tensors: Dict[str, Any]
    value: IpuTensor


def taken_off(model: nn.Module) -> List[AddedTensor]:
    """Remove the traced tensors that are registered in the model, and return them."""
    added: List[AddedTensor] = []
    for prefix, module in model.named_modules():
        for kind in ("_parameters", "_buffers"):
            tensors = module.__dict__[kind]
            for slot in [slot for slot, value in tensors.items() if isinstance(value, IpuTensor)]:
                name = f"{prefix}.{slot}" if prefix else slot
                added.append(AddedTensor(name, slot, tensors, tensors.pop(slot)))
    return added


def put_back(added: List[AddedTensor], known: Callable[[], Mapping[fx.Node, torch.Tensor]]) -> None:
    """Register with their values, on the host, those that have one value for good, and warn of the others.

    Args:
        known: Returns the values that depend on constants and unchanging buffers alone.
    """
    values = known() if added else {}
    for each in added:
        value = values.get(each.value.node)
        if value is None:
            logger.warning(
                "%s was registered by forward while it was traced, and its value is computed on the IPU: the model is "
                "left without it. Register it in the constructor, and change it in place.",
                each.name,
            )
        else:
            each.tensors[each.slot] = value.clone()
