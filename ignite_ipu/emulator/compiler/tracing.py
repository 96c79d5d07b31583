"""Running a model's forward once, on the IPU, to capture its graph; the model is restored, also after an error."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections import OrderedDict
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import fx, nn
from torch.utils.hooks import RemovableHandle

from ignite_ipu.emulator.compiler.batching import Batching
from ignite_ipu.emulator.compiler.graph import Fold, Graph, ancestors, build, fold_constants, live
from ignite_ipu.emulator.errors import Refusal, backend_error, python_error
from ignite_ipu.emulator.logs import backend_logger, logger
from ignite_ipu.emulator.options import Options
from ignite_ipu.emulator.trace import call_sites, operators
from ignite_ipu.emulator.trace.active import IpuTensor, active, module_calls_followed
from ignite_ipu.emulator.trace.capture import Capture
from ignite_ipu.emulator.trace.refusals import explained, refuse_compiled_modules
from ignite_ipu.emulator.values.arguments import Arguments
from ignite_ipu.emulator.values.structures import flatten_tensors, map_tensors
from ignite_ipu.emulator.values.wrapping import plain
from ignite_ipu.torch_names.modules import BUFFERS, PARAMETERS, all_named_modules, buffers_of
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

Hook = Callable[[], None]
_PRE_COMPILE: OrderedDict[int, Hook] = OrderedDict()
_POST_COMPILE: OrderedDict[int, Hook] = OrderedDict()
_NORMALISATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_REMOVED = object()


class _Slot(NamedTuple):
    """A place in which a module holds a parameter or buffer of its own, and its tensor."""

    module: nn.Module
    tensors: Dict[str, Any]
    name: str
    full_name: str
    value: torch.Tensor

    @property
    def is_buffer(self) -> bool:
        return self.tensors is buffers_of(self.module)


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


class _OverwriteContextManager:
    """Context of each trace, in which substitutions that libraries register are in force.

    Each class has a method `replace()`, called on a new object before `forward`, and a method `restore()` for the time
    after it. PopTorch's name, spelling included.
    """

    _subsitution_manager_types: List[Any] = []

    @classmethod
    def registerSubsitutionManager(cls, manager_type: Any) -> None:
        """Use a class in every trace from now on; a second call for the same class does nothing."""
        if manager_type not in cls._subsitution_manager_types:
            cls._subsitution_manager_types.append(manager_type)

    def __enter__(self) -> None:
        with contextlib.ExitStack() as stack:
            for manager_type in self._subsitution_manager_types:
                manager = manager_type()
                manager.replace()
                stack.callback(manager.restore)
            self._restore = stack.pop_all()

    def __exit__(self, *raised: Any) -> None:
        self._restore.close()


def isRunningOnIpu() -> bool:
    """Return whether a wrapped model's forward is being traced in this thread."""
    return active() is not None


def trace(
    model: nn.Module,
    arguments: Arguments,
    batching: Batching,
    placement: Any,
    options: Options,
    training: bool,
    per_replica: Collection[str],
    anchors: Sequence[str],
    fold: Optional[Fold],
) -> Tuple[Graph, Capture]:
    """Run `forward` once on the first micro-batch's shapes and return the graph.

    Args:
        training: Whether a loss is looked for and gradients are recorded.
        per_replica: Parameters whose leading dimension is the group of replicas.
        anchors: Names of further tensors to return.
        fold: Provides values that depend on constants alone; None computes them.
    """
    refuse_compiled_modules(model)
    capture = Capture(placement, options.Precision._compiled_for())
    capture.location_excludes = tuple(options._source_location_excludes)
    with _compile_hooks():
        slots = list(_slots(model))
        stand_ins = _stand_ins(capture, slots, training, per_replica)
        inputs = _traced_inputs(capture, arguments, batching)
        try:
            _fill(slots, stand_ins)
            capture.host_tensors = functools.partial(_on_host, slots)
            with contextlib.ExitStack() as stack:
                stack.enter_context(_OverwriteContextManager())
                stack.enter_context(explained())
                stack.enter_context(capture.tracing(training))
                followers = capture.autocast.followers()
                if options._module_namescope_enabled:
                    # Scopes are named as in the parent.
                    names = {id(module): name.rpartition(".")[2] for name, module in all_named_modules(model) if name}
                    followers.append((capture.scope, lambda module: names.get(id(module), "")))
                stack.enter_context(module_calls_followed(*followers))
                structure = call_sites.called(model, capture.location_excludes, inputs.args, inputs.kwargs)
        finally:
            left = [slot.tensors.get(slot.name, _REMOVED) for slot in slots]
            _fill(slots, [slot.value for slot in slots])
            # They are values of the graph, and would stay on the model as tensors that cannot be read, saved or traced.
            added = [slot for slot in _slots(model) if isinstance(slot.value, IpuTensor)]
            for slot in added:
                del slot.tensors[slot.name]
    _check_identity(slots, stand_ins, left)
    operators.check(capture, live(capture, structure, capture.losses))
    structure = _host_outputs(structure)
    if not any(isinstance(leaf, IpuTensor) for leaf in flatten_tensors(structure)) and not training:
        logger.debug("The model returns nothing that is computed on the IPU.")
    loss = _final_loss(capture.losses) if training else None
    if loss is not None:
        operators.check_loss(capture, loss)
    graph = build(capture, structure, loss, _anchored(capture, anchors), fold)
    if added:
        _put_back(added, capture, dict(model.named_buffers()))
    return graph, capture


def tensors_by_name(capture: Capture) -> Dict[str, Any]:
    """Return the nodes of the graph's tensors in the order in which they are computed.

    Parameters and buffers have their names in the model, other tensors those of their nodes.
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


def _slots(model: nn.Module) -> Iterator[_Slot]:
    for prefix, module in all_named_modules(model):
        for tensors in (module.__dict__[PARAMETERS], module.__dict__[BUFFERS]):
            for name, tensor in list(tensors.items()):
                if tensor is not None:
                    yield _Slot(module, tensors, name, f"{prefix}.{name}" if prefix else name, tensor)


def _fill(slots: Sequence[_Slot], tensors: Sequence[Any]) -> None:
    for slot, tensor in zip(slots, tensors):
        slot.tensors[slot.name] = tensor


def _stand_ins(
    capture: Capture, slots: Sequence[_Slot], training: bool, per_replica: Collection[str]
) -> List[IpuTensor]:
    """Return the traced tensor of each slot, one for the slots that hold the same one."""
    made: Dict[int, IpuTensor] = {}
    for slot in slots:
        name, tensor = slot.full_name, slot.value
        if id(tensor) in made:
            continue
        _check_on_host(name, tensor)
        host = plain(tensor)
        if not host.is_floating_point():
            kind = host.dtype
            backend_logger.warning(
                "%s is of type %s: it was downgraded to constant, its value is compiled in.", name, kind
            )
            stand_in = capture.add_constant(tensor, name)
        elif slot.is_buffer:
            stand_in = capture.add_buffer(name, tensor)
        else:
            with DisableTorchFunctionSubclass():
                trained = training and bool(torch.Tensor.requires_grad.__get__(tensor))  # type: ignore[attr-defined]
            stand_in = capture.add_weight(name, tensor, trained, host[0] if name in per_replica else host)
        stand_in.origin.meta["name"] = name
        made[id(tensor)] = stand_in
    return [made[id(slot.value)] for slot in slots]


def _check_on_host(name: str, tensor: torch.Tensor) -> None:
    if nn.parameter.is_lazy(tensor):
        raise python_error(
            f"{name} is uninitialized: a lazy module takes its shape from the first batch, and shapes are compiled in. "
            "Call the model once on the host before you wrap it."
        )
    # Asked in the ordinary way, a tensor of another program would be downloaded.
    with DisableTorchFunctionSubclass():
        is_on_host = torch.Tensor.is_cpu.__get__(tensor)  # type: ignore[attr-defined]
    if not is_on_host:
        raise python_error(
            f"{name} is on the device {str(tensor.device)!r}: the executor moves the model from the CPU to the IPU "
            "itself. Leave the model on the CPU, or call .cpu() on it."
        )


def _traced_inputs(capture: Capture, arguments: Arguments, batching: Batching) -> Arguments:
    names = iter([name for name, _ in arguments.named_tensors()])

    def traced(tensor: torch.Tensor) -> torch.Tensor:
        name = next(names)
        shape = batching.micro_batch_shape(name, tensor)
        return capture.add_input(name, torch.empty(shape, dtype=tensor.dtype, device="meta"))

    positional, keyword = map_tensors((arguments.args, arguments.kwargs), traced)
    return Arguments(positional, keyword, arguments.names)


@contextlib.contextmanager
def _on_host(slots: Sequence[_Slot]) -> Iterator[None]:
    """Give the model its own tensors in the `with` block, and those of the trace after it."""
    traced = [slot.tensors[slot.name] for slot in slots]
    _fill(slots, [slot.value for slot in slots])
    try:
        yield
    finally:
        _fill(slots, traced)


def _check_identity(slots: Sequence[_Slot], stand_ins: Sequence[IpuTensor], left: Sequence[Any]) -> None:
    for slot, stand_in, tensor in zip(slots, stand_ins, left):
        if tensor is not stand_in and not (slot.is_buffer and isinstance(slot.module, _NORMALISATIONS)):
            kind, change = "Buffer" if slot.is_buffer else "Parameter", "reassigned within"
            raise python_error(
                f"{kind} {slot.full_name} is {'removed from' if tensor is _REMOVED else change} the model when its "
                "forward is called. The device keeps one tensor for it: change it in place instead, for example with "
                "copy_().",
                Refusal.REPLACED_TENSOR,
            )


def _final_loss(losses: Sequence[fx.Node]) -> fx.Node:
    """Return the loss that the gradient is taken of: the one that no other loss consumes."""
    if not losses:
        raise backend_error(
            "Couldn't find a loss in graph: a training model's forward must call one of PyTorch's recognised losses, "
            "or poptorch.identity_loss on a loss of its own. Cross entropy with class probabilities and others that "
            "PyTorch composes of several operators are none: pass them to poptorch.identity_loss."
        )
    candidates = set(losses)
    for loss in losses if len(candidates) > 1 else ():
        candidates -= ancestors([loss])
    if len(candidates) > 1:
        names = ", ".join(sorted(node.name for node in candidates))
        raise backend_error(
            f"Multiple independent losses found in graph: {names}. Combine them, for example with "
            'poptorch.identity_loss(loss1 + loss2, reduction="sum").'
        )
    return candidates.pop()


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


def _put_back(added: Sequence[_Slot], capture: Capture, buffers: Mapping[str, torch.Tensor]) -> None:
    """Register buffers that forward has registered, such as a mask of the first call, with their values on the host.

    That is if it depends on constants and unchanging buffers alone; others are warned of.
    """
    known = fold_constants(
        capture, {traced.origin: plain(buffers[name]) for name, traced in capture.placeholders.buffers.items()}
    )
    for slot in added:
        value = known.get(slot.value.node)  # type: ignore[attr-defined]
        if value is None:
            logger.warning(
                "%s was registered by forward while it was traced, and its value is computed on the IPU: the model is "
                "left without it. Register it in the constructor, and change it in place.",
                slot.full_name,
            )
        else:
            slot.tensors[slot.name] = value.clone()
