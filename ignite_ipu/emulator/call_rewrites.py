"""What becomes of the arguments of a traced call before it is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Tuple

import torch

from ignite_ipu.emulator import activation_types, moves, number_formats, operators
from ignite_ipu.emulator.hidden_writes import without_hidden_writes
from ignite_ipu.emulator.nested import map_leaves

if TYPE_CHECKING:
    from ignite_ipu.emulator.capture import Capture

_Positional = Tuple[Any, ...]
_Keyword = Dict[str, Any]
_Arguments = Tuple[_Positional, _Keyword]


def rewritten(capture: Capture, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    """Return the arguments of the operator `name` as the device gets them.

    Raises:
        Error: The operator does not compile with them.
    """
    for rewrite in _REWRITES:
        args, kwargs = rewrite(capture, name, args, kwargs)
    return args, kwargs


def _with_sizes_of_new(capture: Capture, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    if name == "new" and len(args) > 1 and isinstance(args[1], torch.Size):
        args = (args[0], *args[1])  # a graph keeps sizes as tuples, which `new` would take for values
    return args, kwargs


def _with_types_named(capture: Capture, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    if name == "type":
        args, kwargs = map_leaves((args, kwargs), number_formats.named)
    return args, kwargs


def _with_host_values(capture: Capture, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    if name == "copy_" and len(args) > 1:
        args = (args[0], moves.copied(capture, args[1]), *args[2:])
    if name in ("__getitem__", "__setitem__"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(part, slice) for part in index):
            args = (args[0], tuple(_with_host_bounds(capture, part) for part in index), *args[2:])
    return args, kwargs


def _with_host_bounds(capture: Capture, part: Any) -> Any:
    if not isinstance(part, slice):
        return part
    return slice(*(moves.read_on_host(capture, bound) for bound in (part.start, part.stop, part.step)))


def _of_an_operator(capture: Capture, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    return operators.check_arguments(capture, name, args, kwargs)


def _without_statistics_of_inference(capture: Capture, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    program = capture
    while program.outer is not None:
        program = program.outer
    return (args, kwargs) if program.training else without_hidden_writes(name, args, kwargs)


def _cast(capture: Capture, name: str, args: _Positional, kwargs: _Keyword) -> _Arguments:
    return capture.autocast.cast(capture, name, args, kwargs) if capture.autocast.enabled else (args, kwargs)


# In this order: operators are checked with the types that the model gave them, and layers follow the type that
# autocasting gave their activation.
_REWRITES: Tuple[Callable[[Capture, str, _Positional, _Keyword], _Arguments], ...] = (
    _with_sizes_of_new,
    _with_types_named,
    _with_host_values,
    _of_an_operator,
    _cast,
    activation_types.followed,
    _without_statistics_of_inference,
)
