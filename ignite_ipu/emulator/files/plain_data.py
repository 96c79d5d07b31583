"""Values as JSON and back, for the kinds of values that need no code to be rebuilt."""

from __future__ import annotations

import enum
from typing import Any, Dict, List, Mapping

import torch

from ignite_ipu.emulator import enums
from ignite_ipu.emulator.files.container import DTYPES, DamagedFile


class NotPlain(TypeError):
    """A value cannot be written as data: rebuilding it would take code of its own class."""


def encode(value: Any, tensors: Dict[str, torch.Tensor]) -> Any:
    """Return `value` as something that JSON can hold.

    Args:
        value: None, numbers, strings, dtypes, PopTorch's enumerations, tensors, and lists, tuples, sets and
            dictionaries of these. Tensors on PyTorch's meta device are kept as shapes.
        tensors: Receives the other tensors in `value`, by the name that stands for them.

    Raises:
        NotPlain: There is another kind of value in it.
    """
    kind = type(value)
    if value is None or kind in (bool, str, int):
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is list:
        return [encode(item, tensors) for item in value]
    if kind in (tuple, torch.Size):
        return {"tuple": [encode(item, tensors) for item in value]}
    if kind in (set, frozenset):
        return {"set": sorted((encode(item, tensors) for item in value), key=repr), "frozen": kind is frozenset}
    if kind is dict:
        return {"dict": [[encode(key, tensors), encode(item, tensors)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)[len("torch.") :]}
    if isinstance(value, enum.Enum) and getattr(enums, kind.__name__, None) is kind:
        return {"enum": kind.__name__, "member": value.name}
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        if value.is_meta:
            return {"meta": str(value.dtype)[len("torch.") :], "shape": list(value.shape)}
        name = f"tensor {len(tensors)}"
        tensors[name] = value
        return {"tensor": name}
    raise NotPlain(f"a {kind.__module__}.{kind.__qualname__}")


def decode(data: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return what `encode` was given.

    Raises:
        DamagedFile: `data` does not come from `encode`.
    """
    try:
        return _decode(data, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, StopIteration) as error:
        raise DamagedFile(f"its values make no sense ({type(error).__name__}: {error})") from error


def _decode(data: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(data, (list, dict)):
        return data
    if isinstance(data, list):
        return [_decode(item, tensors) for item in data]
    kind = next(iter(data))
    content = data[kind]
    if kind == "float":
        return float.fromhex(content)
    if kind == "tuple":
        return tuple(_decode(item, tensors) for item in content)
    if kind == "set":
        items: List[Any] = [_decode(item, tensors) for item in content]
        return frozenset(items) if data["frozen"] else set(items)
    if kind == "dict":
        return {_decode(key, tensors): _decode(item, tensors) for key, item in content}
    if kind == "dtype":
        return DTYPES[content]
    if kind == "enum":
        return _enumeration(content)[data["member"]]
    if kind == "meta":
        return torch.empty(tuple(data["shape"]), dtype=DTYPES[content], device="meta")
    if kind == "tensor":
        return tensors[content]
    raise ValueError(f"no kind of value is called {kind!r}")


def _enumeration(name: str) -> Any:
    found = getattr(enums, name)
    if not (isinstance(found, type) and issubclass(found, enum.Enum)):
        raise ValueError(f"{name!r} is no enumeration")
    return found
