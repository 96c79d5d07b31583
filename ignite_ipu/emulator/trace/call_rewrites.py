"""What becomes of the arguments of a traced call before it is recorded."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch

from ignite_ipu.emulator.trace import moves, number_formats
from ignite_ipu.emulator.trace.active import Trace
from ignite_ipu.emulator.trace.hidden_writes import without_hidden_writes
from ignite_ipu.emulator.trace.operators import support
from ignite_ipu.emulator.values.nested import map_leaves

__all__ = ["followed"]

_Positional = Tuple[Any, ...]
_Keyword = Dict[str, Any]
_Arguments = Tuple[_Positional, _Keyword]


def rewritten(capture: Trace, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    """Return the arguments of the operator `name` as the device gets them.

    Raises:
        Error: The operator does not compile with them.
    """
    for rewrite in _REWRITES:
        args, kwargs = rewrite(capture, name, args, kwargs)
    return args, kwargs


def _with_sizes_of_new(capture: Trace, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    if name == "new" and len(args) > 1 and isinstance(args[1], torch.Size):
        args = (args[0], *args[1])  # a graph keeps sizes as tuples, which `new` would take for values
    return args, kwargs


def _with_types_named(capture: Trace, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    if name == "type":
        args, kwargs = map_leaves((args, kwargs), number_formats.named)
    return args, kwargs


def _with_host_values(capture: Trace, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    if name == "copy_" and len(args) > 1:
        args = (args[0], moves.copied(capture, args[1]), *args[2:])
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(part, slice) for part in index):
            args = (args[0], tuple(_with_host_bounds(capture, part) for part in index), *args[2:])
    return args, kwargs


def _with_host_bounds(capture: Trace, part: Any) -> Any:
    if not isinstance(part, slice):
        return part
    return slice(*(moves.read_on_host(capture, bound) for bound in (part.start, part.stop, part.step)))


def _of_an_operator(capture: Trace, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    return support.check_arguments(capture, name, args, kwargs)


def _without_statistics_of_inference(capture: Trace, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    program = capture
    while program.outer is not None:
        program = program.outer
    return (args, kwargs) if program.training else without_hidden_writes(name, args, kwargs)


def _cast(capture: Trace, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    return capture.autocast.cast(capture, name, args, kwargs) if capture.autocast.enabled else (args, kwargs)


_LAYERS = frozenset(
    (
        "linear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "bilinear",
    )
)


def followed(
    capture: Trace, name: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Return an operator's arguments with weight and bias cast to the activation's type, if it is such a layer."""
    if name not in _LAYERS:
        return args, kwargs
    activation = args[0] if args else kwargs["input"]
    dtype = capture.traced(activation).meta.dtype

    def follow(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            traced = capture.traced(value)
            if traced.meta.dtype != dtype and traced.meta.is_floating_point() and dtype.is_floating_point:
                return capture.record(torch.Tensor.to, traced, dtype)
        return value

    return tuple(follow(arg) for arg in args), {key: follow(value) for key, value in kwargs.items()}


# In this order: operators are checked with the types that the model gave them, and layers follow the type that
# autocasting gave their activation.
_REWRITES: Tuple[Callable[[Trace, str, _Positional, _Keyword], _Arguments], ...] = (
    _with_sizes_of_new,
    _with_types_named,
    _with_host_values,
    _of_an_operator,
    _cast,
    followed,
    _without_statistics_of_inference,
)
