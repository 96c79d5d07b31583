"""Moves to a GPU, tensors made there, and types that name one: they are the host's, whence PopTorch takes all.

Types are `torch.cuda.FloatTensor` and its like, generators, and `with torch.device("cuda")`.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any, Dict, Mapping, Tuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu.operators.words import word_set
from ignite_ipu.program.forward.number_formats import forget_defaults, note_conversion, note_default
from ignite_ipu.running.patches import Substitutes
from ignite_ipu.running.substitutes.host_training import PlacedModels
from ignite_ipu.torch_names.modules import device_context, name_factories

_FACTORIES = word_set(
    "tensor as_tensor asarray zeros ones empty full rand randn randint randperm arange linspace logspace eye "
    "normal empty_like zeros_like ones_like full_like rand_like randn_like randint_like empty_strided "
    "scalar_tensor tril_indices triu_indices bartlett_window blackman_window hamming_window hann_window "
    "kaiser_window sparse_coo_tensor"
)
_NEW = word_set("new_tensor new_zeros new_ones new_empty new_full")
_HOST = torch.device("cpu")
_KINDS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
_TENSORS = tuple(f"{kind}Tensor" for kind in _KINDS)
_PREFIX = "torch.cuda."


def is_gpu(device: Any) -> bool:
    """Return whether a device argument names a GPU; a number does."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device == "cuda" or device.startswith("cuda:")
    return isinstance(device, int) and not isinstance(device, bool)


def substitute_devices(substitutes: Substitutes, placed: PlacedModels) -> None:
    """Keep objects on the host that the script sends to a GPU, itself or through torch, Ignite and accelerate.

    On a machine without a GPU this holds for libraries, too: they could only have got the device from the script.
    """
    forget_defaults()
    _substitute_types(substitutes)
    moves = _Moves(substitutes, placed)
    for owner, what in ((torch.Tensor, "tensor"), (nn.Module, "module")):
        substitutes.calls(owner, "to", moves.to, f"{what}.to")
        substitutes.calls(owner, "cuda", moves.kept, f"{what}.cuda()", "stays on the host")
    substitutes.calls(nn.Module, "bfloat16", moves.converted, (torch.bfloat16,))
    substitutes.calls(nn.Module, "type", moves.converted, ())
    substitutes.calls(torch, "set_default_dtype", moves.set_default_dtype)
    for name in _FACTORIES:
        if hasattr(torch, name):
            substitutes.calls(torch, name, moves.factory, f"torch.{name}")
    for name in _NEW:
        substitutes.calls(torch.Tensor, name, moves.factory, f"tensor.{name}")
    substitutes.calls(torch, "load", moves.load)
    substitutes.calls(torch.Tensor, "pin_memory", moves.kept, "tensor.pin_memory()", "left out")
    substitutes.calls(torch, "set_default_device", moves.set_default_device)
    substitutes.calls(DataLoader, "__init__", moves.loader)
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and "fused" in inspect.signature(kind).parameters:
            substitutes.calls(kind, "__init__", moves.optimizer)


class _Moves:
    """Answers to calls that move something or make something there."""

    def __init__(self, substitutes: Substitutes, placed: PlacedModels) -> None:
        self._substitutes, self._placed = substitutes, placed
        # Libraries may use a GPU of the machine for themselves.
        self._of_libraries = not torch.cuda.is_available()

    def _mapped(self, frame: FrameType, text: str, became: str = "stays on the host") -> bool:
        return self._substitutes.maps(frame, text, became, self._of_libraries)

    def to(self, what: str, frame: FrameType, original: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get("device")
        if isinstance(target, nn.Module):
            note_conversion(target, (*args, *kwargs.values()), self._substitutes.code.line_behind(frame)[0])
        if not is_gpu(first) or not self._mapped(frame, f"{what}({_shown(first)})"):
            return original(target, *args, **kwargs)
        self._note(frame, target)
        if args:
            args = (_HOST, *args[1:])
        else:
            kwargs["device"] = _HOST
        only_device = len(args) + len(kwargs) - ("non_blocking" in kwargs) == 1
        if only_device and isinstance(target, nn.Module):
            return target
        return original(target, *args, **kwargs)

    def converted(
        self, to: Tuple[Any, ...], frame: FrameType, original: Any, module: nn.Module, *args: Any, **kwargs: Any
    ) -> Any:
        note_conversion(module, (*to, *args, *kwargs.values()), self._substitutes.code.line_behind(frame)[0])
        return original(module, *args, **kwargs)

    def set_default_dtype(self, frame: FrameType, original: Any, d: Any) -> None:
        note_default(d, self._substitutes.code.line_behind(frame)[0])
        original(d)

    def kept(
        self, what: str, became: str, frame: FrameType, original: Any, target: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._mapped(frame, what, became):
            return original(target, *args, **kwargs)
        self._note(frame, target)
        return target

    def _note(self, frame: FrameType, target: Any) -> None:
        if isinstance(target, nn.Module):
            self._placed.add(target, self._substitutes.code.line_behind(frame)[0])

    def factory(self, what: str, frame: FrameType, original: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if is_gpu(device) and self._mapped(frame, f"{what}(device={_shown(device)})", "is made on the host"):
            kwargs["device"] = _HOST
        return original(*args, **kwargs)

    def load(self, frame: FrameType, original: Any, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        line = self._substitutes.code.line_of(frame, packages=True)
        if line is not None:
            mapped = _host_location(map_location)
            if mapped is not map_location and map_location is not None:
                text = f"torch.load(map_location={_shown(map_location)})"
                self._substitutes.note(text, "loads to the host", line)
            map_location = mapped
        return original(f, map_location, *args, **kwargs)

    def set_default_device(self, frame: FrameType, original: Any, device: Any) -> None:
        if not (is_gpu(device) and self._mapped(frame, f"torch.set_default_device({_shown(device)})")):
            original(device)

    def loader(self, frame: FrameType, original: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("pin_memory") and self._mapped(frame, "DataLoader(pin_memory=True)", "False"):
            kwargs["pin_memory"] = False
        original(*args, **kwargs)

    def optimizer(self, frame: FrameType, original: Any, *args: Any, **kwargs: Any) -> None:
        # An older PyTorch has fused updates for GPUs alone, and an IPU's are compiled anyway.
        if kwargs.get("fused") and self._mapped(frame, "fused=True", "left out"):
            kwargs["fused"] = None
        original(*args, **kwargs)


def _host_location(location: Any) -> Any:
    if location is None or is_gpu(location):
        return _HOST
    if isinstance(location, Mapping):
        return {key: "cpu" if is_gpu(value) else value for key, value in location.items()}
    return location


def _shown(device: Any) -> str:
    return repr(str(device)) if isinstance(device, torch.device) else repr(device)


def _substitute_types(substitutes: Substitutes) -> None:
    """Let the script's types of GPU tensors be those of the host, and its generators and device contexts the host's."""
    # PyTorch lists its factories by identity when it first needs them, which must not be their substitutes.
    name_factories()

    for name in _TENSORS:
        host_type = _host_type(name, getattr(torch.cuda, name), getattr(torch, name), substitutes)
        substitutes.set(torch.cuda, name, host_type)
    substitutes.set(torch, "Generator", _host_generator(torch.Generator, substitutes))

    def type_(frame: FrameType, original: Any, tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(dtype, type) and issubclass(dtype, torch.Tensor):
            dtype = torch.Tensor  # `type(output)`, which no other class is natively
        name = _gpu_type(dtype)
        if name is None or not substitutes.maps(frame, f"tensor.type({_PREFIX}{name})", "stays on the host"):
            return original(tensor, *([] if dtype is None else [dtype]), *args, **kwargs)
        return tensor.to(getattr(torch, name).dtype)

    def default_type(frame: FrameType, original: Any, kind: Any) -> None:
        name = _gpu_type(kind)
        if name is not None and substitutes.maps(frame, f"torch.set_default_tensor_type({name})", "is the host's"):
            kind = getattr(torch, name)
        note_default(kind, substitutes.code.line_behind(frame)[0])
        original(kind)

    def context(frame: FrameType, original: Any, own: Any, device: Any) -> None:
        if is_gpu(device) and substitutes.maps(frame, f"with torch.device({str(device)!r})", "makes on the host"):
            device = "cpu"
        original(own, device)

    substitutes.calls(torch.Tensor, "type", type_)
    substitutes.calls(torch, "set_default_tensor_type", default_type)
    substitutes.calls(device_context(), "__init__", context)


def _host_type(name: str, original: Any, host: Any, substitutes: Substitutes) -> Any:
    """Return the substitute of a type of GPU tensors: called by the script, it makes a tensor of the host."""

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
