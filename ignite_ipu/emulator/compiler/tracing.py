"""Running a model's forward once, on the IPU, to capture its graph; the model is restored whatever happens."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import fx, nn
from torch.utils.hooks import RemovableHandle

from ignite_ipu.emulator.compiler.batching import Batching
from ignite_ipu.emulator.compiler.graph import Fold, Graph, build, fold_constants, live
from ignite_ipu.emulator.errors import Refusal, backend_error, python_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.trace import call_sites, losses
from ignite_ipu.emulator.trace.active import active
from ignite_ipu.emulator.trace.capture import Capture
from ignite_ipu.emulator.trace.operators import support
from ignite_ipu.emulator.trace.patches import module_calls_followed
from ignite_ipu.emulator.trace.precision import Precision
from ignite_ipu.emulator.trace.refusals import explained, refuse_compiled_modules
from ignite_ipu.emulator.trace.traced_tensor import IpuTensor
from ignite_ipu.emulator.values.arguments import Arguments
from ignite_ipu.emulator.values.custom_types import flatten_tensors, map_tensors
from ignite_ipu.emulator.values.wrapping import plain

Hook = Callable[[], None]
_PRE_COMPILE: OrderedDict[int, Hook] = OrderedDict()
_POST_COMPILE: OrderedDict[int, Hook] = OrderedDict()
_NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _Slot(NamedTuple):
    """A place in which a module holds a parameter or buffer of its own."""

    module: nn.Module
    kind: str
    name: str
    full_name: str
    original: torch.Tensor

    @property
    def tensors(self) -> Dict[str, Any]:
        tensors: Dict[str, Any] = self.module.__dict__[self.kind]
        return tensors


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Call `hook()` before any executor's forward is traced.

    Raises:
        RuntimeError: `hook` is not callable.
    """
    return _register(_PRE_COMPILE, hook)


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
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
    location_excludes: Sequence[str] = (),
    module_scopes: bool = True,
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
        location_excludes: Parts of file names: a stack frame of such a file is not the user's code.
        module_scopes: Whether modules open name scopes.

    Raises:
        Error: What forward does cannot be compiled, or it replaced a parameter or buffer; or one of these is lazy or
            on another device than the CPU.
    """
    refuse_compiled_modules(model)
    capture = Capture(placement, precision)
    capture.location_excludes = tuple(location_excludes)
    with _compile_hooks():
        stand_ins, slots = _move_to_ipu(capture, model, training, per_replica)
        inputs = _traced_inputs(capture, arguments, batching)
        try:
            for slot in slots:
                slot.tensors[slot.name] = stand_ins[id(slot.original)]
            capture.host_tensors = functools.partial(_on_host, slots)
            with contextlib.ExitStack() as stack:
                stack.enter_context(explained())
                stack.enter_context(capture.tracing(training))
                stack.enter_context(capture.autocast.module_calls())
                if module_scopes:
                    stack.enter_context(_module_scopes(capture, model))
                structure = call_sites.called(model, capture.location_excludes, inputs.positional, inputs.keyword)
        finally:
            changed = _restored(slots, stand_ins)
            added = taken_off(model)
    _check_identity(changed)
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


def _register(hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"A compile hook must be callable, got {hook!r}.")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


@contextlib.contextmanager
def _compile_hooks() -> Iterator[None]:
    for hook in list(_PRE_COMPILE.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_POST_COMPILE.values()):
            hook()


@contextlib.contextmanager
def _module_scopes(capture: Capture, model: nn.Module) -> Iterator[None]:
    """Let each sub-module of `model` that is called in the `with` block open a scope, named as in its parent."""
    names = {id(module): name.rpartition(".")[2] for name, module in model.named_modules() if name}

    def enter(module: nn.Module) -> None:
        if id(module) in names:
            capture.scope.append(names[id(module)])

    def leave(module: nn.Module) -> None:
        if id(module) in names:
            capture.scope.pop()

    with module_calls_followed(enter, leave):
        yield


def _move_to_ipu(
    capture: Capture, model: nn.Module, training: bool, per_replica: Sequence[str]
) -> Tuple[Dict[int, IpuTensor], List[_Slot]]:
    """Make a stand-in for every parameter and buffer, and list the places where they are registered."""
    stand_ins: Dict[int, IpuTensor] = {}
    slots: List[_Slot] = []
    for prefix, module in model.named_modules():
        for kind in ("_parameters", "_buffers"):
            for name, tensor in module.__dict__[kind].items():
                if tensor is None:
                    continue
                full_name = f"{prefix}.{name}" if prefix else name
                slots.append(_Slot(module, kind, name, full_name, tensor))
                if id(tensor) not in stand_ins:
                    _check_on_host(full_name, tensor)
                    stand_ins[id(tensor)] = _stand_in(capture, slots[-1], training, full_name in per_replica)
                    stand_ins[id(tensor)].origin.meta["name"] = full_name
    return stand_ins, slots


def _stand_in(capture: Capture, slot: _Slot, training: bool, per_replica: bool) -> IpuTensor:
    name, tensor = slot.full_name, slot.original
    host = plain(tensor)
    if not host.is_floating_point():
        logger.warning("%s is of type %s: it was downgraded to constant, its value is compiled in.", name, host.dtype)
        return capture.add_constant(tensor, name)
    if slot.kind == "_buffers":
        return capture.add_buffer(name, tensor)
    with torch._C.DisableTorchFunctionSubclass():
        requires_grad = training and bool(torch.Tensor.requires_grad.__get__(tensor))  # type: ignore[attr-defined]
    return capture.add_weight(name, tensor, requires_grad, host[0] if per_replica else host)


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


def _restored(slots: Sequence[_Slot], stand_ins: Mapping[int, IpuTensor]) -> List[Tuple[_Slot, str]]:
    """Put the tensors back, and return the slots that forward changed, with what became of them."""
    removed = [(slot, "removed from") for slot in slots if slot.name not in slot.tensors]
    replaced = [
        (slot, "reassigned within")
        for slot in slots
        if slot.tensors.get(slot.name, stand_ins[id(slot.original)]) is not stand_ins[id(slot.original)]
    ]
    for slot in slots:
        slot.tensors[slot.name] = slot.original
    return [*removed, *replaced]


@contextlib.contextmanager
def _on_host(slots: Sequence[_Slot]) -> Iterator[None]:
    """Give the model its own tensors in the `with` block, and those of the trace after it."""
    traced = [slot.tensors[slot.name] for slot in slots]
    for slot in slots:
        slot.tensors[slot.name] = slot.original
    try:
        yield
    finally:
        for slot, tensor in zip(slots, traced):
            slot.tensors[slot.name] = tensor


def _check_identity(changed: Sequence[Tuple[_Slot, str]]) -> None:
    for slot, change in changed:
        if slot.kind == "_buffers" and isinstance(slot.module, _NORMALISATIONS):
            continue
        raise python_error(
            f"{'Buffer' if slot.kind == '_buffers' else 'Parameter'} {slot.full_name} is {change} the model when its "
            "forward is called. The device keeps one tensor for it: change it in place instead, for example with "
            "copy_().",
            Refusal.REPLACED_TENSOR,
        )


def _host_outputs(structure: Any) -> Any:
    """Warn of outputs that are not on the IPU, and freeze them."""

    def freeze(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, IpuTensor):
            return tensor
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
