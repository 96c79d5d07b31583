"""Ways of tensors onto the IPU in a trace: factory functions, and moves from the host."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from ignite_ipu.emulator.errors import backend_error
from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.trace.active import Trace
from ignite_ipu.emulator.trace.operators import support
from ignite_ipu.emulator.trace.operators.table import words
from ignite_ipu.emulator.trace.refusals import illegal_move
from ignite_ipu.emulator.trace.traced_tensor import TO, IpuTensor
from ignite_ipu.emulator.values.nested import holds_tensors

Args = Tuple[Any, ...]
Kwargs = Dict[str, Any]

# Placed on the IPU when called without a device (the list is PopTorch's; `normal` only without tensor arguments, which
# is left to PyTorch otherwise).
_FACTORIES = words(
    "arange empty full full_like linspace logspace normal ones rand randint randn randperm range tensor zeros "
    "zeros_like"
)
MOVES = ("to", "type_as")  # the host's tensor and one on the IPU may meet in these
_FROM_DATA = ("tensor", "as_tensor", "from_numpy")
_CPU = torch.device("cpu")


def names_ipu(value: Any) -> bool:
    """Tell whether `value` is the IPU as a device."""
    if isinstance(value, torch.device):
        return value.type == "ipu"
    return isinstance(value, str) and value.split(":")[0] == "ipu"


def put_on_ipu(capture: Trace, func: Callable[..., Any], name: str, args: Args, kwargs: Kwargs) -> Optional[IpuTensor]:
    """Answer a call without traced tensors whose result belongs on the IPU; None for one whose does not."""
    drawn_around_tensors = name == "normal" and holds_tensors((args, kwargs))
    if name in _FACTORIES and kwargs.get("device") is None and not drawn_around_tensors:
        logger.warning("%s was called without a device: forcing to IPU.", name)
        return _made(capture, func, name, args, kwargs)
    if names_ipu(kwargs.get("device")) or (name == "to" and any(names_ipu(arg) for arg in args[1:])):
        if not holds_tensors(args):
            return _made(capture, func, name, args, kwargs)
        with capture.outside():
            args = tuple(_CPU if names_ipu(arg) else arg for arg in args)
            kwargs = {key: _CPU if names_ipu(value) else value for key, value in kwargs.items()}
            return capture.add_constant(func(*args, **kwargs))
    return None


def moved(capture: Trace, tensor: Any, args: Args, kwargs: Kwargs) -> Optional[Any]:
    """Answer `tensor.to(...)` or `type_as` where the device changes; None leaves a plain cast to be recorded."""
    rest = [*args, *kwargs.values()]
    if not isinstance(tensor, IpuTensor):
        with capture.outside():  # a host tensor moved next to one on the IPU
            target = next(value for value in rest if isinstance(value, IpuTensor))
            return capture.add_constant(tensor.to(target.meta.dtype))
    devices: List[Any] = [value for value in rest if isinstance(value, (torch.device, str))]
    devices += [value for value in (kwargs.get("device"),) if isinstance(value, int) and value is not False]
    if not devices:
        return None
    for device in devices:
        if not names_ipu(device):
            raise illegal_move(f".to({str(device)!r})", str(device))
    casts = [value for value in rest if isinstance(value, torch.dtype)]
    return capture.call(TO, (tensor, casts[0]), {}) if casts else tensor


def copied(capture: Trace, tensor: Any) -> Any:
    """Return what a tensor on the IPU is filled with: one of the host's becomes a constant."""
    if not isinstance(tensor, torch.Tensor) or capture.is_traced(tensor):
        return tensor
    if tensor.requires_grad:
        raise backend_error(
            "An input tensor to an IPU model can not have requires_grad set to True, and copy_() is given one of the "
            "host: its value is compiled in. Call detach() on it, or make it a parameter of the model."
        )
    with capture.outside():
        return capture.add_constant(tensor)


def read_on_host(capture: Trace, bound: Any) -> Any:
    """Return the number that an integer tensor of the host is, as a bound of a slice."""
    if not isinstance(bound, torch.Tensor) or capture.is_traced(bound):
        return bound
    with capture.outside():
        integer = not bound.is_floating_point() and bound.numel() == 1
        return int(bound) if integer else bound


def _made(capture: Trace, func: Callable[..., Any], name: str, args: Args, kwargs: Kwargs) -> IpuTensor:
    kwargs = {**kwargs, "device": _CPU}
    if name in _FROM_DATA or "generator" in kwargs or holds_tensors((args, kwargs)):
        with capture.outside():
            return capture.add_constant(func(*args, **kwargs))
    support.check_arguments(capture, name, args, kwargs)
    made: IpuTensor = capture.record(func, *args, **kwargs)
    return made
