"""Moves to a GPU and tensors made there: they stay on the host, from where PopTorch takes models and batches."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable, Mapping

import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu.running.patches import Substitutes

__all__ = ["is_gpu", "substitute_devices"]

_FACTORIES = (
    "tensor",
    "as_tensor",
    "asarray",
    "zeros",
    "ones",
    "empty",
    "full",
    "rand",
    "randn",
    "randint",
    "randperm",
    "arange",
    "linspace",
    "logspace",
    "eye",
    "normal",
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "empty_strided",
    "scalar_tensor",
    "tril_indices",
    "triu_indices",
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "kaiser_window",
    "sparse_coo_tensor",
)
_NEW = ["new_tensor", "new_zeros", "new_ones", "new_empty", "new_full"]
_HOST = torch.device("cpu")


def is_gpu(device: Any) -> bool:
    """Tell whether a device argument names a GPU; a number does."""
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device == "cuda" or device.startswith("cuda:")
    return isinstance(device, int) and not isinstance(device, bool)


def substitute_devices(substitutes: Substitutes) -> None:
    """Keep on the host what the script sends to a GPU, itself or through torch, Ignite and accelerate.

    On a machine without a GPU this holds for libraries, too: they could only have got the device from the script.
    """
    moves = _Moves(substitutes, gpu=bool(torch.cuda.is_available()))
    for owner, name, what in ((torch.Tensor, "to", "tensor.to"), (nn.Module, "to", "module.to")):
        substitutes.set(owner, name, moves.to(getattr(owner, name), what))
    for owner, name, what in ((torch.Tensor, "cuda", "tensor.cuda"), (nn.Module, "cuda", "module.cuda")):
        substitutes.set(owner, name, moves.cuda(getattr(owner, name), what))
    for name in _FACTORIES:
        if hasattr(torch, name):
            substitutes.set(torch, name, moves.factory(getattr(torch, name), f"torch.{name}"))
    for name in _NEW:
        substitutes.set(torch.Tensor, name, moves.factory(getattr(torch.Tensor, name), f"tensor.{name}"))
    substitutes.set(torch, "load", moves.load(torch.load))
    substitutes.set(torch.Tensor, "pin_memory", moves.pin_memory(torch.Tensor.pin_memory))
    substitutes.set(torch, "set_default_device", moves.set_default_device(torch.set_default_device))
    substitutes.set(DataLoader, "__init__", moves.loader(DataLoader.__init__))


class _Moves:
    """Makes the substitutes.

    Args:
        substitutes: What the script's calls mean instead.
        gpu: Whether the machine has a GPU that libraries may use for themselves.
    """

    def __init__(self, substitutes: Substitutes, gpu: bool) -> None:
        self._code = substitutes.code
        self._journal = substitutes.journal
        self._maps = functools.partial(substitutes.maps, of_libraries=not gpu)

    def _mapped(self, frame: Any, text: str, became: str = "stays on the host") -> bool:
        return self._maps(frame, text, became)

    def to(self, original: Callable[..., Any], what: str) -> Any:
        @functools.wraps(original)
        def to(target: Any, *args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else kwargs.get("device")
            if not is_gpu(first) or not self._mapped(sys._getframe(1), f"{what}({_shown(first)})"):
                return original(target, *args, **kwargs)
            if args:
                args = (_HOST, *args[1:])
            else:
                kwargs["device"] = _HOST
            only_device = len(args) + len(kwargs) - ("non_blocking" in kwargs) == 1
            if only_device and isinstance(target, nn.Module):
                return target
            return original(target, *args, **kwargs)

        return to

    def cuda(self, original: Callable[..., Any], what: str) -> Any:
        @functools.wraps(original)
        def cuda(target: Any, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._mapped(sys._getframe(1), f"{what}()"):
                return target
            return original(target, device, *args, **kwargs)

        return cuda

    def factory(self, original: Callable[..., Any], what: str) -> Any:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            if device is None or not is_gpu(device):
                return original(*args, **kwargs)
            if self._mapped(sys._getframe(1), f"{what}(device={_shown(device)})", "is made on the host"):
                kwargs["device"] = _HOST
            return original(*args, **kwargs)

        return make

    def load(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            line = self._code.line_of(sys._getframe(1))
            if line is not None:
                mapped = _host_location(map_location)
                if mapped is not map_location and map_location is not None:
                    text = f"torch.load(map_location={_shown(map_location)})"
                    self._journal.note(line, text, "loads to the host")
                map_location = mapped
            return original(f, map_location, *args, **kwargs)

        return load

    def pin_memory(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def pin_memory(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._mapped(sys._getframe(1), "tensor.pin_memory()", "left out"):
                return tensor
            return original(tensor, *args, **kwargs)

        return pin_memory

    def set_default_device(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def set_default_device(device: Any) -> None:
            if is_gpu(device) and self._mapped(sys._getframe(1), f"torch.set_default_device({_shown(device)})"):
                return
            original(device)

        return set_default_device

    def loader(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("pin_memory") and self._mapped(sys._getframe(1), "DataLoader(pin_memory=True)", "False"):
                kwargs["pin_memory"] = False
            original(loader, *args, **kwargs)

        return __init__


def _host_location(location: Any) -> Any:
    if location is None or is_gpu(location):
        return _HOST
    if isinstance(location, Mapping):
        return {key: "cpu" if is_gpu(value) else value for key, value in location.items()}
    return location


def _shown(device: Any) -> str:
    return repr(str(device)) if isinstance(device, torch.device) else repr(device)
