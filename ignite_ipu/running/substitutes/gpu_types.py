"""Types that name a GPU: `torch.cuda.FloatTensor` and its like, generators, and `with torch.device("cuda")`."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Dict

import torch
import torch.utils._device

from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.substitutes.devices import is_gpu

__all__ = ["substitute_gpu_types"]

_KINDS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_TENSORS = tuple(f"{kind}Tensor" for kind in _KINDS)
_PREFIX = "torch.cuda."


def substitute_gpu_types(substitutes: Substitutes) -> None:
    """Let the script's types of GPU tensors be those of the host, and its generators and device contexts the host's."""
    # PyTorch lists its factories by identity when it first needs them, which must not be their substitutes.
    torch.utils._device._device_constructors()

    mapped = substitutes.maps
    for name in _TENSORS:
        original: Any = getattr(torch.cuda, name)
        substitutes.set(torch.cuda, name, _host_type(name, original, getattr(torch, name), mapped))
    substitutes.set(torch.Tensor, "type", _tensor_type(torch.Tensor.type, mapped))
    substitutes.set(torch, "set_default_tensor_type", _default_type(torch.set_default_tensor_type, mapped))
    substitutes.set(torch, "Generator", _host_generator(torch.Generator, mapped))
    context = torch.utils._device.DeviceContext
    substitutes.set(context, "__init__", _device_context(context.__init__, mapped))


_Mapped = Callable[[Any, str, str], bool]


def _host_type(name: str, original: Any, host: Any, mapped: _Mapped) -> Any:
    """Return what stands for a type of GPU tensors: called by the script, it makes a tensor of the host."""

    class HostType(type):
        dtype = original.dtype

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if mapped(sys._getframe(1), f"{_PREFIX}{name}()", "is made on the host"):
                return host(*args, **kwargs)
            return original(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            own = mapped(sys._getframe(1), f"isinstance({_PREFIX}{name})", f"asks for torch.{name}")
            return isinstance(instance, host if own else original)

    return HostType(name, (), {"__module__": "torch.cuda"})


def _tensor_type(original: Callable[..., Any], mapped: _Mapped) -> Any:
    @functools.wraps(original)
    def type_(tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = _gpu_type(dtype)
        if name is None or not mapped(sys._getframe(1), f"tensor.type({_PREFIX}{name})", "stays on the host"):
            return original(tensor, *([] if dtype is None else [dtype]), *args, **kwargs)
        return tensor.to(getattr(torch, name).dtype)

    return type_


def _default_type(original: Callable[..., Any], mapped: _Mapped) -> Any:
    @functools.wraps(original)
    def set_default_tensor_type(kind: Any) -> None:
        name = _gpu_type(kind)
        if name is not None and mapped(sys._getframe(1), f"torch.set_default_tensor_type({name})", "is the host's"):
            kind = getattr(torch, name)
        original(kind)

    return set_default_tensor_type


def _host_generator(original: Any, mapped: _Mapped) -> Any:
    class HostGenerator(type):
        def __call__(cls, device: Any = None) -> Any:
            if device is None:
                return original()
            gpu = is_gpu(device) and mapped(sys._getframe(1), f"torch.Generator({str(device)!r})", "is the host's")
            return original("cpu" if gpu else device)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

        def __getattr__(cls, name: str) -> Any:
            return getattr(original, name)

    return HostGenerator("Generator", (), {"__module__": "torch"})


def _device_context(original: Callable[..., Any], mapped: _Mapped) -> Any:
    @functools.wraps(original)
    def __init__(context: Any, device: Any) -> None:
        if is_gpu(device) and mapped(sys._getframe(1), f"with torch.device({str(device)!r})", "makes on the host"):
            device = "cpu"
        original(context, device)

    return __init__


def _gpu_type(kind: Any) -> Any:
    """Return the name of a type of GPU tensors, None for anything else."""
    if isinstance(kind, str):
        return kind[len(_PREFIX) :] if kind.startswith(_PREFIX) and kind[len(_PREFIX) :] in _TENSORS else None
    known: Dict[int, str] = {id(getattr(torch.cuda, name)): name for name in _TENSORS}
    return known.get(id(kind))
