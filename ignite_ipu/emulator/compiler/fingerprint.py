"""A text that is the same for two captured graphs exactly when they compute the same."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import types
from typing import Any, Callable, Iterator, List

import torch
from torch import fx

from ignite_ipu.emulator.trace.traced_tensor import IpuTensor


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
            arguments = ", ".join(_texts((*node.args, *node.kwargs.items())))
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


def _texts(values: Any) -> Iterator[str]:
    return (_text(value) for value in values)


def _text(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, IpuTensor):
        return f"traced {value.node.name}"
    if isinstance(value, torch.Tensor):
        if value.is_meta:
            return f"meta {value.dtype} {tuple(value.shape)}"
        return f"tensor {tensor_digest(value)}"
    if value is None or type(value) in (bool, int, str, bytes, complex, torch.dtype, torch.device):
        return repr(value)
    if type(value) in (torch.layout, torch.memory_format, type(Ellipsis)):
        return repr(value)
    if type(value) is float:
        return value.hex()
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, slice):
        return f"slice({', '.join(_texts((value.start, value.stop, value.step)))})"
    if isinstance(value, fx.Graph):
        return f"graph {graph_text(value)}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{', '.join(_texts(value))}]"
    if isinstance(value, dict):
        return f"dict[{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}]"
    if isinstance(value, (set, frozenset)):
        return f"set[{', '.join(sorted(_texts(value)))}]"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A graph's generated function and its text follow from its nodes.
        fields = [field.name for field in dataclasses.fields(value) if field.name not in ("run", "source")]
        return f"{type(value).__qualname__}({', '.join(_texts(getattr(value, name) for name in fields))})"
    if callable(value):
        return _function(value)
    raise NoFingerprint(f"a value of type {type(value).__qualname__}")


def _function(function: Callable[..., Any]) -> str:
    if getattr(function, "runs_every_time", False):
        return f"at run time {getattr(function, '__name__', '')}"
    if isinstance(function, functools.partial):
        return f"partial({', '.join(_texts((function.func, function.args, function.keywords)))})"
    if isinstance(function, types.FunctionType):
        return _python_function(function)
    if isinstance(function, types.MethodType):
        return f"method({_text(function.__self__)}, {_function(function.__func__)})"
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", None)
    module = getattr(function, "__module__", None) or getattr(getattr(function, "__objclass__", None), "__name__", "")
    if name is None or isinstance(function, type):
        raise NoFingerprint(f"the callable {function!r}")
    owner = getattr(function, "__self__", None)
    return f"{type(function).__name__} {module}.{name} {_accessed(owner)}"


def _accessed(owner: Any) -> str:
    """Return what tells the getter of one property from another's: both are called `__get__`."""
    if owner is None or isinstance(owner, types.ModuleType):
        return ""
    return str(getattr(owner, "__qualname__", None) or getattr(owner, "__name__", type(owner).__qualname__))


def _python_function(function: types.FunctionType) -> str:
    module = function.__module__ or ""
    if module.split(".")[0] not in ("torch", "ignite_ipu", "operator", "builtins"):
        raise NoFingerprint(f"the function {module}.{function.__qualname__}, which may read what no key can show")
    # Closures may lead back to their function: each of PyTorch's operator methods, such as __pow__, does.
    closure: List[Any] = [
        cell.cell_contents for cell in function.__closure__ or () if cell.cell_contents is not function
    ]
    return (
        f"def {module}.{function.__qualname__} {hashlib.sha256(function.__code__.co_code).hexdigest()} "
        f"[{', '.join(_texts(closure))}]"
    )
