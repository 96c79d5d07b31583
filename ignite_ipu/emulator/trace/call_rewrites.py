"""Changes to the arguments of a traced call before it is recorded, and its writes that PyTorch does not count."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

from ignite_ipu.emulator.trace import moves, number_formats
from ignite_ipu.emulator.trace.active import Trace
from ignite_ipu.emulator.trace.operators import support
from ignite_ipu.emulator.trace.operators.table import words
from ignite_ipu.emulator.trace.traced_tensor import TO, IpuTensor
from ignite_ipu.emulator.values.nested import map_leaves

_Positional = Tuple[Any, ...]
_Keyword = Dict[str, Any]
_Arguments = Tuple[_Positional, _Keyword]

# Layers whose weight and bias follow the type of the activation.
_LAYERS = words("linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
# The argument of a normalisation that says whether its running statistics are updated, by operator.
_FLAGS = {"batch_norm": "training", "instance_norm": "use_input_stats"}
_STATISTICS = ("running_mean", "running_var")
_NAMES = ("input", *_STATISTICS, "weight", "bias")
# `torch.batch_norm` and `torch.instance_norm` take them in another order, and always all nine arguments.
_NAMES_OF_NINE = ("input", "weight", "bias", *_STATISTICS)


def rewritten(trace: Trace, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    """Return the arguments of the operator `name` as the device gets them."""
    if name == "new" and len(args) > 1 and isinstance(args[1], torch.Size):
        args = (args[0], *args[1])  # a graph keeps sizes as tuples, which `new` would take for values
    if name == "type":
        args, kwargs = map_leaves((args, kwargs), number_formats.named)
    if name == "copy_" and len(args) > 1:
        args = (args[0], moves.copied(trace, args[1]), *args[2:])
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(part, slice) for part in index):
            args = (args[0], tuple(_with_host_bounds(trace, part) for part in index), *args[2:])
    # Operators are checked with the types that the model gave them, and layers follow the type that autocasting gave
    # their activation.
    args, kwargs = support.check_arguments(trace, name, args, kwargs)
    if trace.autocast.enabled:
        args, kwargs = trace.autocast.cast(trace, name, args, kwargs)
    if name in _LAYERS:
        args, kwargs = _following_activation(trace, args, kwargs)
    program = trace
    while program.outer is not None:
        program = program.outer
    return (args, kwargs) if program.training else _without_statistics(name, args, kwargs)


def hidden_writes(name: str, args: _Positional, kwargs: _Keyword) -> List[IpuTensor]:
    """Return the traced arguments that operator `name` writes into without PyTorch's version counters noticing.

    They are the running statistics of normalisations.
    """
    named = _updated(name, args, kwargs)
    return [named[each] for each in _STATISTICS if isinstance(named.get(each), IpuTensor)]


def _with_host_bounds(trace: Trace, part: Any) -> Any:
    if not isinstance(part, slice):
        return part
    return slice(*(moves.read_on_host(trace, bound) for bound in (part.start, part.stop, part.step)))


def _following_activation(trace: Trace, args: _Positional, kwargs: _Keyword) -> _Arguments:
    """Return a layer's arguments with weight and bias cast to the activation's type."""
    dtype = trace.traced(args[0] if args else kwargs["input"]).meta.dtype

    def follow(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            traced = trace.traced(value)
            if traced.meta.dtype != dtype and traced.meta.is_floating_point() and dtype.is_floating_point:
                return trace.record(TO, traced, dtype)
        return value

    return tuple(map(follow, args)), {key: follow(value) for key, value in kwargs.items()}


def _without_statistics(name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    """Return arguments with which an operator computes the same and writes no running statistics.

    That is how an inference program normalises with a batch's own statistics.
    """
    if not _updated(name, args, kwargs):
        return args, kwargs
    names = _names(args, kwargs)
    args = tuple(None if each in _STATISTICS else value for each, value in zip(names, args)) + args[len(names) :]
    return args, {each: value for each, value in kwargs.items() if each not in _STATISTICS}


def _updated(name: str, args: _Positional, kwargs: _Keyword) -> Dict[str, Any]:
    """Return the arguments by name if the operator updates statistics, else none."""
    flag = _FLAGS.get(name)
    if flag is None:
        return {}
    named = {**dict(zip((*_names(args, kwargs), flag), args)), **kwargs}
    return named if named.get(flag, flag == "use_input_stats") else {}


def _names(args: _Positional, kwargs: _Keyword) -> Tuple[str, ...]:
    return _NAMES_OF_NINE if len(args) + len(kwargs) == 9 else _NAMES
