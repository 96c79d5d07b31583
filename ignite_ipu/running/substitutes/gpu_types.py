"""Types that name a GPU: `torch.cuda.FloatTensor` and its like, generators, and `with torch.device("cuda")`."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Dict

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

    for name in _TENSORS:
        host_type = _host_type(name, getattr(torch.cuda, name), getattr(torch, name), substitutes)
        substitutes.set(torch.cuda, name, host_type)
    substitutes.set(torch, "Generator", _host_generator(torch.Generator, substitutes))

    def type_(frame: FrameType, original: Any, tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = _gpu_type(dtype)
        if name is None or not substitutes.maps(frame, f"tensor.type({_PREFIX}{name})", "stays on the host"):
            return original(tensor, *([] if dtype is None else [dtype]), *args, **kwargs)
        return tensor.to(getattr(torch, name).dtype)

    def default_type(frame: FrameType, original: Any, kind: Any) -> None:
        name = _gpu_type(kind)
        if name is not None and substitutes.maps(frame, f"torch.set_default_tensor_type({name})", "is the host's"):
            kind = getattr(torch, name)
        original(kind)

    def context(frame: FrameType, original: Any, own: Any, device: Any) -> None:
        if is_gpu(device) and substitutes.maps(frame, f"with torch.device({str(device)!r})", "makes on the host"):
            device = "cpu"
        original(own, device)

    substitutes.calls(torch.Tensor, "type", type_)
    substitutes.calls(torch, "set_default_tensor_type", default_type)
    substitutes.calls(torch.utils._device.DeviceContext, "__init__", context)


def _host_type(name: str, original: Any, host: Any, substitutes: Substitutes) -> Any:
    """Return what stands for a type of GPU tensors: called by the script, it makes a tensor of the host."""

    class HostType(type):
        dtype = original.dtype

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if substitutes.maps(sys._getframe(1), f"{_PREFIX}{name}()", "is made on the host"):
                return host(*args, **kwargs)
            return original(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            own = substitutes.maps(sys._getframe(1), f"isinstance({_PREFIX}{name})", f"asks for torch.{name}")
            return isinstance(instance, host if own else original)

    return HostType(name, (), {"__module__": "torch.cuda"})


def _host_generator(original: Any, substitutes: Substitutes) -> Any:
    class HostGenerator(type):
        def __call__(cls, device: Any = None) -> Any:
            if device is None:
                return original()
            gpu = is_gpu(device) and substitutes.maps(
                sys._getframe(1), f"torch.Generator({str(device)!r})", "is the host's"
            )
            return original("cpu" if gpu else device)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

        def __getattr__(cls, name: str) -> Any:
            return getattr(original, name)

    return HostGenerator("Generator", (), {"__module__": "torch"})


def _gpu_type(kind: Any) -> Any:
    """Return the name of a type of GPU tensors, None for anything else."""
    if isinstance(kind, str):
        return kind[len(_PREFIX) :] if kind.startswith(_PREFIX) and kind[len(_PREFIX) :] in _TENSORS else None
    known: Dict[int, str] = {id(getattr(torch.cuda, name)): name for name in _TENSORS}
    return known.get(id(kind))
