"""A text that is the same for two captured graphs exactly when they compute the same."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
from typing import Any, Callable, Iterable, Iterator

import torch
from torch import fx

from ignite_ipu.emulator.trace.active import IpuTensor

_PLAIN = (
    *(type(None), bool, int, str, bytes, complex, type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class NoFingerprint(Exception):
    """Something in a graph has no text that says all about it: a function whose globals may change, an object."""


def graph_text(graph: fx.Graph) -> str:
    """Return the text of a graph, without the values of its placeholders.

    Raises:
        NoFingerprint: An operator is a user's own function that is evaluated at compile time.
    """
    try:
        return "\n".join(_lines(graph))
    except (RecursionError, ValueError) as error:  # a closure that leads back to itself, or is not filled yet
        raise NoFingerprint("a function whose closure has no text") from error


def _lines(graph: fx.Graph) -> Iterator[str]:
    for node in graph.nodes:
        shape = f"{node.meta.get('dtype')} {node.meta.get('shape')}"
        if node.op == "call_function":
            arguments = _texts((*node.args, *node.kwargs.items()))
            yield f"{node.name} = {_function(node.target)}({arguments}) {shape} {node.meta.get('operator')}"
        else:
            yield f"{node.op} {node.name} {shape}"


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return a digest of a tensor's type, shape and values."""
    flat = tensor.detach().contiguous().reshape(-1)
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    if flat.numel():
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _texts(values: Iterable[Any]) -> str:
    return ", ".join(map(_text, values))


def _text(value: Any) -> str:
    kind = type(value)
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, IpuTensor):
        return f"traced {value.node.name}"
    if isinstance(value, torch.Tensor):
        return f"meta {value.dtype} {tuple(value.shape)}" if value.is_meta else f"tensor {tensor_digest(value)}"
    if kind in _PLAIN:
        return repr(value)
    if kind is float:
        return str(value.hex())
    if isinstance(value, enum.Enum):
        return f"{kind.__qualname__}.{value.name}"
    if isinstance(value, slice):
        return f"slice({_texts((value.start, value.stop, value.step))})"
    if isinstance(value, fx.Graph):
        return f"graph {graph_text(value)}"
    if isinstance(value, (list, tuple)):
        return f"{kind.__name__}[{_texts(value)}]"
    if isinstance(value, dict):
        return f"dict[{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}]"
    if isinstance(value, (set, frozenset)):
        return f"set[{', '.join(sorted(map(_text, value)))}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A graph's generated function and its text follow from its nodes.
        fields = [field.name for field in dataclasses.fields(value) if field.name not in ("run", "source")]
        return f"{kind.__qualname__}({_texts(getattr(value, name) for name in fields)})"
    if callable(value):
        return _function(value)
    raise NoFingerprint(f"a value of type {kind.__qualname__}")


def _function(function: Callable[..., Any]) -> str:
    if getattr(function, "runs_every_time", False):
        return f"at run time {getattr(function, '__name__', '')}"
    if isinstance(function, functools.partial):
        return f"partial({_texts((function.func, function.args, function.keywords))})"
    if isinstance(function, types.FunctionType):
        return _python_function(function)
    if isinstance(function, types.MethodType):
        return f"method({_text(function.__self__)}, {_function(function.__func__)})"
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    module = getattr(function, "__module__", None) or getattr(getattr(function, "__objclass__", None), "__name__", "")
    if name is None or isinstance(function, type):
        raise NoFingerprint(f"the callable {function!r}")
    owner, accessed = getattr(function, "__self__", None), ""
    if owner is not None and not isinstance(owner, types.ModuleType):
        # It distinguishes the getters of properties: all are called `__get__`.
        own_name = getattr(owner, "__qualname__", None)
        accessed = str(own_name or getattr(owner, "__name__", type(owner).__qualname__))
    return f"{type(function).__name__} {module}.{name} {accessed}"


def _python_function(function: types.FunctionType) -> str:
    module = function.__module__ or ""
    if module.split(".")[0] not in ("torch", "ignite_ipu", "operator", "builtins"):
        raise NoFingerprint(
            f"the function {module}.{function.__qualname__}, which may read values that no key contains"
        )
    # Closures may lead back to their function: each of PyTorch's operator methods, such as __pow__, does.
    closure = [cell.cell_contents for cell in function.__closure__ or () if cell.cell_contents is not function]
    digest = hashlib.sha256(function.__code__.co_code).hexdigest()
    return f"def {module}.{function.__qualname__} {digest} [{_texts(closure)}]"
