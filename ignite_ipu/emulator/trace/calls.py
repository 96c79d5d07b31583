"""Calls of PyTorch's API on their way into a trace: lookups, changes and refusals before they are recorded.

Some functions do not hand all of their arguments over, as `torch.overrides` lets them: `l1_loss` is overridden without
its `weight`, `chain_matmul` without its `out`. They are still in the function's frame.

Some functions that are written in Python are traced by their own calls, and not as one operator. One kind takes a
function, which may use layers of the model and runs in the trace alone. The other is attention that mixes half and
float, which its layers resolve one by one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from torch.overrides import handle_torch_function

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import backend_logger
from ignite_ipu.emulator.trace import number_formats, operators
from ignite_ipu.emulator.trace.active import TO, IpuTensor, Trace
from ignite_ipu.emulator.trace.refusals import illegal_move
from ignite_ipu.emulator.values.structures import holds_tensors, leaves, map_leaves
from ignite_ipu.operators import table
from ignite_ipu.operators.words import words

Args = Tuple[Any, ...]
Kwargs = Dict[str, Any]

# Placed on the IPU when called without a device (the list is PopTorch's; `normal` only without tensor arguments, which
# is left to PyTorch otherwise).
_FACTORIES = words(
    "arange empty full full_like linspace logspace normal ones rand randint randn randperm range tensor zeros "
    "zeros_like"
)
MOVES = ("to", "type_as")  # the host's tensor and one on the IPU may meet in these
_FROM_DATA = ("tensor", "as_tensor", "from_numpy")
_CPU = torch.device("cpu")
# The functional name of each recognised loss; the loss modules of torch.nn all arrive here too.
_LOSSES = frozenset(table.GROUPS["losses"]) - {"multilabel_soft_margin_loss", "triplet_margin_with_distance_loss"}
# The place and the name of the argument that holds indices.
_INDICES: Dict[str, Tuple[int, str]] = {
    **dict.fromkeys(
        words(
            "gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_select index_fill "
            "index_fill_ index_copy index_copy_ index_add index_add_"
        ),
        (2, "index"),
    ),
    **dict.fromkeys(words("index_put index_put_"), (1, "indices")),
    **dict.fromkeys(words("__getitem__ __setitem__ take"), (1, "index")),
    **dict.fromkeys(words("cross_entropy nll_loss multi_margin_loss multilabel_margin_loss"), (1, "target")),
    "take_along_dim": (1, "indices"),
    "embedding": (0, "input"),
    "one_hot": (0, "tensor"),
}
# The place and the name of the argument whose values are written, which PyTorch's kernels take in the target's type.
_SOURCES: Dict[str, Tuple[int, str]] = {
    **dict.fromkeys(words("scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_"), (3, "src")),
    **dict.fromkeys(words("index_put index_put_"), (2, "values")),
    "__setitem__": (2, "value"),
    **dict.fromkeys(words("index_copy index_copy_"), (3, "source")),
}
_INTEGERS = (torch.int32, torch.int64)  # which are one type on the device
# Layers whose weight and bias follow the type of the activation.
_LAYERS = words("linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
# The argument of a normalisation that enables updates of its running statistics, by operator.
_FLAGS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
_STATISTICS = ("running_mean", "running_var")
_NAMES = ("input", *_STATISTICS, "weight", "bias")
# `torch.batch_norm` and `torch.instance_norm` take them in another order, and always all nine arguments.
_NAMES_OF_NINE = ("input", "weight", "bias", *_STATISTICS)

_HANDS_OVER = getattr(handle_torch_function, "__code__", None)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_FUNCTIONAL = (torch.functional.__name__, torch.nn.functional.__name__)
# Of the layers in them, each follows the type of its own activation.
_WITH_LAYERS = (torch.nn.functional.multi_head_attention_forward,)
_MIXED = {torch.float16, torch.float32}
_CALLABLE_VALUES = (type, torch.device)  # a device is callable because it can decorate a function


def found_again(func: Callable[..., Any], args: Args, kwargs: Kwargs) -> Kwargs:
    """Return `kwargs` with the arguments that `func` was called with and that are missing.

    To be called by an override itself: the caller's caller is `func`, or PyTorch's code between the two.
    """
    code = getattr(func, "__code__", None)
    frame = None if code is None else sys._getframe(1).f_back
    if frame is not None and frame.f_code is _HANDS_OVER:
        frame = frame.f_back
    if frame is None or frame.f_code is not code:
        return kwargs
    signature, called_with = _signature(func), frame.f_locals
    given = signature.bind_partial(*args, **kwargs).arguments
    missing = {
        name: called_with[name]
        for name, parameter in signature.parameters.items()
        if name not in given and parameter.kind not in _VARIADIC
        if called_with.get(name, parameter.default) is not parameter.default
    }
    return {**kwargs, **missing}


@functools.lru_cache(maxsize=None)
def _signature(func: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(func, follow_wrapped=False)  # the frame is that of the wrapper


def original_of(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return PyTorch's own tensor method if the class has a replacement of it that called it.

    PyTorch's C++ code looks the method up on the class by name, and so finds the replacement.
    """
    replaced = isinstance(func, types.FunctionType) and not (func.__module__ or "").startswith("torch.")
    if replaced and vars(torch.Tensor).get(func.__name__) is func:
        func = getattr(torch.Tensor.__base__, func.__name__, func)
    return func


def is_traced_by_parts(trace: Trace, func: Callable[..., Any], arguments: Any) -> bool:
    """Return whether the calls of `func` are to be traced, and not `func` itself."""
    if not isinstance(func, types.FunctionType) or func.__module__ not in _FUNCTIONAL:
        return False  # a tensor's methods take hooks, which are no part of the computation
    if func in _WITH_LAYERS and len(trace.tensors.dtypes(arguments) & _MIXED) > 1:
        return True
    return any(callable(leaf) and not isinstance(leaf, _CALLABLE_VALUES) for leaf in leaves(arguments))


def unfolded(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of PyTorch's without the handing over to a trace that it begins with.

    Its own calls are passed on as usual.
    """
    assert isinstance(func, types.FunctionType)
    names = {**func.__globals__, **{name: lambda *tensors: False for name in _ASKS if name in func.__globals__}}
    body = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    body.__kwdefaults__ = func.__kwdefaults__
    return functools.wraps(func)(body)


def is_loss(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call is a loss: cross entropy with class probabilities is none, PyTorch composes it."""
    if name not in _LOSSES:
        return False
    target = args[1] if len(args) > 1 else kwargs.get("target")
    return name != "cross_entropy" or not (isinstance(target, torch.Tensor) and target.is_floating_point())


def rewritten(trace: Trace, name: str, args: Args, kwargs: Kwargs) -> Tuple[Args, Kwargs]:
    """Return the arguments of the operator `name` as the device gets them."""
    if name == "new" and len(args) > 1 and isinstance(args[1], torch.Size):
        args = (args[0], *args[1])  # a graph keeps sizes as tuples, which `new` would take for values
    if name == "type":
        args, kwargs = map_leaves((args, kwargs), number_formats.named)
    if name == "copy_" and len(args) > 1:
        args = (args[0], copied(trace, args[1]), *args[2:])
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(part, slice) for part in index):
            args = (args[0], tuple(_with_host_bounds(trace, part) for part in index), *args[2:])
    # Operators are checked with the types that the model gave them, and layers follow the type that autocasting gave
    # their activation.
    args, kwargs = operators.check_arguments(trace, name, args, kwargs)
    if trace.autocast.enabled:
        args, kwargs = trace.autocast.cast(trace, name, args, kwargs)
    if name in _INDICES:
        args, kwargs = _with_wide_indices(trace, name, args, kwargs)
    if name in _SOURCES:
        args, kwargs = _with_integers_alike(trace, name, args, kwargs)
    if name in _LAYERS:
        args, kwargs = _following_activation(trace, args, kwargs)
    program = trace
    while program.outer is not None:
        program = program.outer
    # An inference program normalises with a batch's own statistics just as well, and writes no running ones.
    updated = () if program.training else [id(each) for each in hidden_writes(name, args, kwargs)]
    if updated:
        _check_statistics(hidden_writes(name, args, kwargs), args, kwargs)
        args, kwargs = map_leaves((args, kwargs), lambda leaf: None if id(leaf) in updated else leaf)
    elif program.training and name in _FLAGS and not hidden_writes(name, args, kwargs):
        # A gradient depends on the values that were read. PyTorch's kernels compute it with those of a later update.
        statistics, _ = _statistics(name, args, kwargs)
        read = {id(each): trace.record(torch.Tensor.clone, trace.traced(each)) for each in statistics}
        args, kwargs = map_leaves((args, kwargs), lambda leaf: read.get(id(leaf), leaf))
    return args, kwargs


def hidden_writes(name: str, args: Args, kwargs: Kwargs) -> List[Any]:
    """Return the arguments that operator `name` writes into without PyTorch's version counters noticing.

    They are the running statistics of normalisations.
    """
    found, updates = _statistics(name, args, kwargs)
    return found if updates else []


def _statistics(name: str, args: Args, kwargs: Kwargs) -> Tuple[List[Any], bool]:
    """Return the running statistics among the arguments of an operator, and whether it updates them."""
    if name not in _FLAGS:
        return [], False
    flag = _FLAGS[name]
    names = _NAMES_OF_NINE if len(args) + len(kwargs) == 9 else _NAMES
    named = {**dict(zip((*names, flag), args)), **kwargs}
    found = [named[each] for each in _STATISTICS if isinstance(named.get(each), torch.Tensor)]
    return found, bool(named.get(flag, flag == "use_input_stats"))


def _with_wide_indices(trace: Trace, name: str, args: Args, kwargs: Kwargs) -> Tuple[Args, Kwargs]:
    """Return an operator's arguments with int32 indices converted to the type that PyTorch's kernels take."""

    def widened(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and trace.tensors.has(leaf):
            traced = trace.traced(leaf)
            return trace.record(TO, traced, torch.int64) if traced.meta.dtype is torch.int32 else leaf
        return leaf

    return _with_argument(_INDICES[name], args, kwargs, widened)


def _with_integers_alike(trace: Trace, name: str, args: Args, kwargs: Kwargs) -> Tuple[Args, Kwargs]:
    """Return an operator's arguments with the integers that it writes in the type of its target's."""
    target = args[0] if args else kwargs.get("input")
    if not isinstance(target, torch.Tensor):
        return args, kwargs
    dtype = trace.traced(target).meta.dtype

    def converted(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and trace.tensors.has(leaf):
            traced = trace.traced(leaf)
            if dtype in _INTEGERS and traced.meta.dtype in _INTEGERS and traced.meta.dtype is not dtype:
                return trace.record(TO, traced, dtype)
        return leaf

    return _with_argument(_SOURCES[name], args, kwargs, converted)


def _with_argument(
    which: Tuple[int, str], args: Args, kwargs: Kwargs, change: Callable[[Any], Any]
) -> Tuple[Args, Kwargs]:
    """Return arguments with the leaves of the one at a place, or of a name, changed."""
    place, argument = which
    if place < len(args):
        return (*args[:place], map_leaves(args[place], change), *args[place + 1 :]), kwargs
    return args, {key: map_leaves(value, change) if key == argument else value for key, value in kwargs.items()}


def _check_statistics(statistics: Sequence[Any], args: Args, kwargs: Kwargs) -> None:
    """Refuse running statistics of another number of channels than the input has, as PyTorch does.

    Raises:
        RuntimeError: PyTorch's own.
    """
    channels = (args[0] if args else kwargs["input"]).shape[1]
    for name, each in zip(_STATISTICS, statistics):
        if each.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {each.numel()}")


def _with_host_bounds(trace: Trace, part: Any) -> Any:
    """Return a slice with the numbers that integer tensors of the host are as its bounds; anything else as it is."""

    def read(bound: Any) -> Any:
        if not isinstance(bound, torch.Tensor) or trace.tensors.has(bound):
            return bound
        with trace.outside():
            return int(bound) if not bound.is_floating_point() and bound.numel() == 1 else bound

    return slice(read(part.start), read(part.stop), read(part.step)) if isinstance(part, slice) else part


def _following_activation(trace: Trace, args: Args, kwargs: Kwargs) -> Tuple[Args, Kwargs]:
    """Return a layer's arguments with weight and bias cast to the activation's type."""
    dtype = trace.traced(args[0] if args else kwargs["input"]).meta.dtype

    def follow(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            traced = trace.traced(value)
            if traced.meta.dtype != dtype and traced.meta.is_floating_point() and dtype.is_floating_point:
                return trace.record(TO, traced, dtype)
        return value

    return tuple(map(follow, args)), {key: follow(value) for key, value in kwargs.items()}


def names_ipu(value: Any) -> bool:
    """Return whether `value` is the IPU as a device."""
    if isinstance(value, torch.device):
        return value.type == "ipu"
    return isinstance(value, str) and value.split(":")[0] == "ipu"


def put_on_ipu(capture: Trace, func: Callable[..., Any], name: str, args: Args, kwargs: Kwargs) -> Optional[IpuTensor]:
    """Answer a call without traced tensors whose result belongs on the IPU; None for one whose does not."""
    drawn_around_tensors = name == "normal" and holds_tensors((args, kwargs))
    if name in _FACTORIES and kwargs.get("device") is None and not drawn_around_tensors:
        backend_logger.warning("%s was called without a device: forcing to IPU.", name)
        return _made(capture, func, name, args, kwargs)
    if names_ipu(kwargs.get("device")) or (name == "to" and any(names_ipu(arg) for arg in args[1:])):
        if not holds_tensors(args):
            return _made(capture, func, name, args, kwargs)
        with capture.outside():
            args, kwargs = map_leaves((args, kwargs), lambda leaf: _CPU if names_ipu(leaf) else leaf)
            return capture.add_constant(func(*args, **kwargs))
    return None


def moved(capture: Trace, tensor: Any, args: Args, kwargs: Kwargs) -> Optional[Any]:
    """Answer `tensor.to(...)` or `type_as` where the device changes; None leaves a plain cast to be recorded."""
    rest = [*args, *kwargs.values()]
    if not isinstance(tensor, IpuTensor):
        with capture.outside():  # a host tensor moved next to one on the IPU
            target = next(value for value in rest if isinstance(value, IpuTensor))
            return capture.add_constant(tensor.to(target.meta.dtype))
    devices: List[Any] = [value for value in rest if isinstance(value, (torch.device, str))]
    devices += [value for value in (kwargs.get("device"),) if isinstance(value, int) and value is not False]
    if not devices:
        return None
    for device in devices:
        if not names_ipu(device):
            raise illegal_move(f".to({str(device)!r})", str(device))
    casts = [value for value in rest if isinstance(value, torch.dtype)]
    return capture.call(TO, (tensor, casts[0]), {}) if casts else tensor


def copied(capture: Trace, tensor: Any) -> Any:
    """Return the source for filling a tensor on the IPU: one of the host's becomes a constant."""
    if not isinstance(tensor, torch.Tensor) or capture.tensors.has(tensor):
        return tensor
    if tensor.requires_grad:
        raise backend_error(
            "An input tensor to an IPU model can not have requires_grad set to True, and copy_() is given one of the "
            "host: its value is compiled in. Call detach() on it, or make it a parameter of the model."
        )
    with capture.outside():
        return capture.add_constant(tensor)


def _made(capture: Trace, func: Callable[..., Any], name: str, args: Args, kwargs: Kwargs) -> IpuTensor:
    kwargs = {**kwargs, "device": _CPU}
    if name in _FROM_DATA or "generator" in kwargs or holds_tensors((args, kwargs)):
        with capture.outside():
            return capture.add_constant(func(*args, **kwargs))
    operators.check_arguments(capture, name, args, kwargs)
    made: IpuTensor = capture.record(func, *args, **kwargs)
    return made
