"""What stands for the gradients of a captured model, which exist on the device alone.

On the host `parameter.grad` would be None, and torch's own clipping in a captured loop would silently clip nothing.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.errors import CaptureError
from ignite_ipu.deferred.lines import current_line
from ignite_ipu.deferred.structure import words

__all__ = ["DeviceGradient", "DeviceGradients"]

# Inherited, so that the descriptor stays the original when somebody replaces `torch.Tensor.grad`.
_GRADIENT: Any = torch._C.TensorBase.grad
_METADATA = words("size dim ndimension numel is_floating_point is_complex _has_compatible_shallow_copy_type")
_METADATA_PROPERTIES = words("shape dtype device layout ndim is_sparse requires_grad")


class DeviceGradient(torch.Tensor):
    """The `.grad` of a captured parameter: it has shape, type and device, and any use of its values is an error.

    Attributes:
        remedy: What to do to clip gradients.
    """

    remedy: str

    @staticmethod
    def __new__(cls, parameter: torch.Tensor, remedy: str) -> DeviceGradient:
        gradient: DeviceGradient = torch.Tensor._make_wrapper_subclass(
            cls,
            parameter.shape,
            strides=parameter.stride(),
            dtype=parameter.dtype,
            device=parameter.device,
            requires_grad=False,
        )
        gradient.remedy = remedy
        return gradient

    def __init__(self, parameter: torch.Tensor, remedy: str) -> None:
        super().__init__()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if _is_metadata(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        first = args[0] if args else None
        if isinstance(first, DeviceGradient) and _in_conversion():
            # What becomes of the parameter's values does not become of values that are not there.
            return first
        raise _error([*args, *(kwargs or {}).values()])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # What autograd does within PyTorch does not pass through its Python API.
        raise _error([*args, *(kwargs or {}).values()])

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:  # type: ignore[override]
        # Debuggers and error messages show objects at any time: this one never fails.
        return "DeviceGradient(on the device alone)"

    def __deepcopy__(self, memo: Dict[int, Any]) -> None:
        """Return None: a copy of a captured parameter is an ordinary one, without gradient."""


class DeviceGradients:
    """Puts a `DeviceGradient` on each trained parameter of a model.

    They stay from one update to the next, since a loop over parameters in each would cost more than capturing it.

    Args:
        model: The user's model.
        remedy: What its loop does to clip gradients; None puts nothing on parameters.
    """

    def __init__(self, model: nn.Module, remedy: Optional[str]) -> None:
        self._parameters: List[torch.Tensor] = list(model.parameters())
        self._remedy = remedy
        self._witness: Optional[torch.Tensor] = None

    def place(self) -> None:
        """Put gradients on the parameters; cheap while they are there."""
        if self._remedy is None:
            return
        # Touched in the ordinary way, a parameter of a model in training would download all weights first.
        with torch._C.DisableTorchFunctionSubclass():
            if self._witness is not None and type(_GRADIENT.__get__(self._witness)) is DeviceGradient:
                return
            for parameter in self._parameters:
                if _requires_gradient(parameter):
                    gradient = DeviceGradient(torch.Tensor.detach(parameter), self._remedy)
                    _GRADIENT.__set__(parameter, gradient)
                    self._witness = parameter

    def refuse_those_of_the_host(self) -> None:
        """Refuse an update for gradients that the host has computed.

        Raises:
            CaptureError: A parameter has one.
        """
        if self._remedy is None:
            return
        with torch._C.DisableTorchFunctionSubclass():
            for parameter in self._parameters:
                gradient = _GRADIENT.__get__(parameter)
                if gradient is not None and type(gradient) is not DeviceGradient:
                    raise CaptureError(
                        f"step() at {current_line()}: nothing of the captured model went backward, but a "
                        f"parameter of shape {tuple(parameter.shape)} has a gradient that the host has computed, which "
                        "would be lost. Compute the loss from what the model returns in training mode; a penalty on "
                        "its weights, in its forward. To drop the gradient, set parameter.grad = None."
                    )

    def remove(self) -> None:
        """Take them off, so that whoever looks at the parameters next finds ordinary ones."""
        if self._witness is None:
            return
        self._witness = None
        with torch._C.DisableTorchFunctionSubclass():
            for parameter in self._parameters:
                if type(_GRADIENT.__get__(parameter)) is DeviceGradient:
                    _GRADIENT.__set__(parameter, None)


_requires_gradient: Callable[[torch.Tensor], bool] = torch._C.TensorBase.requires_grad.__get__  # type: ignore[attr-defined]


def _is_metadata(func: Any) -> bool:
    name = func.__name__
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") in _METADATA_PROPERTIES
    return name in _METADATA


def _in_conversion() -> bool:
    """Tell whether `nn.Module` converts or moves parameters, each with its gradient."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code is nn.Module._apply.__code__:
            return True
        frame = frame.f_back
    return False


def _error(arguments: List[Any]) -> CaptureError:
    while arguments:
        value = arguments.pop()
        if isinstance(value, DeviceGradient):
            return CaptureError(
                f"The gradient of a parameter is used at {current_line()}, but gradients exist on the device "
                f"alone. To clip them, {value.remedy}. They are cleared by optimizer.zero_grad()."
            )
        if isinstance(value, (list, tuple)):
            arguments.extend(value)
    raise RuntimeError("PyTorch called the class of a device gradient without one.")
