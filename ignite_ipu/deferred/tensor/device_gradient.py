"""Stand-in for one gradient, whose values come from the device when somebody looks at them."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, List, Optional, Protocol, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.structure import mapped, words
from ignite_ipu.deferred.tensor.frames import frame_of
from ignite_ipu.deferred.tensor.in_place import OPERATORS
from ignite_ipu.errors import CaptureError
from ignite_ipu.program.tensors.raw import gradient_of
from ignite_ipu.program.tensors.trees import leaves_of
from ignite_ipu.program.user_code import current_line

__all__ = ["DeviceGradient", "GradientSource"]

# What converts or moves the parameters of a module, each with its gradient.
_CONVERSION = nn.Module._apply.__code__
_CLIPPING = [inspect.unwrap(clip).__code__ for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_)]
_METADATA = words("size dim ndimension numel is_floating_point is_complex _has_compatible_shallow_copy_type __hash__")
_METADATA_PROPERTIES = words("shape dtype device layout ndim is_sparse requires_grad is_leaf grad grad_fn is_cuda")


class GradientSource(Protocol):
    """Captured model, as its gradients know it."""

    def gradient_of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Return the value of a gradient, for which the update runs if it has not; None where PyTorch has none."""


class DeviceGradient(torch.Tensor):
    """The `.grad` of a captured parameter: its values are fetched when somebody looks at them, and nobody may write.

    Attributes:
        source: Weakly, what has the values.
        parameter: Weakly, the parameter.
        remedy: What to do to clip gradients.
        held: The values, once the gradient is one of the past; those of another tensor's memory for a part of it.
    """

    source: Callable[[], Optional[GradientSource]]
    parameter: Callable[[], Optional[torch.Tensor]]
    remedy: str
    held: Optional[torch.Tensor]

    @staticmethod
    def __new__(cls, like: torch.Tensor, *args: Any) -> DeviceGradient:
        gradient: DeviceGradient = torch.Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device, requires_grad=False
        )
        return gradient

    def __init__(
        self,
        like: torch.Tensor,
        source: Callable[[], Optional[GradientSource]],
        parameter: Callable[[], Optional[torch.Tensor]],
        remedy: str,
        held: Optional[torch.Tensor] = None,
    ) -> None:
        super().__init__()
        self.source, self.parameter, self.remedy, self.held = source, parameter, remedy, held

    def read(self) -> torch.Tensor:
        """Return the values."""
        if self.held is not None:
            return self.held
        source, parameter = self.source(), self.parameter()
        values = None if source is None or parameter is None else source.gradient_of(parameter)
        if values is None:
            raise CaptureError(
                f"A gradient is read at {current_line()} of a parameter of shape {tuple(self.shape)} that has none: "
                "the loss does not depend on it, or it was cleared. In the first update that is not known before its "
                "values are read, from then on parameter.grad is None: leave the parameter out, or read after "
                "optimizer.step()."
            )
        return values

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_metadata(func):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, DeviceGradient) and frame_of(_CONVERSION) is not None:
            # What becomes of the parameter's values does not become of values that are not there.
            return first
        _refuse_writing(func, args, kwargs)
        of: Dict[int, DeviceGradient] = {}

        def values(leaf: Any) -> Any:
            if not isinstance(leaf, DeviceGradient):
                return leaf
            found = leaf.read()
            of[found.untyped_storage().data_ptr()] = leaf
            return found

        def unwritable(leaf: Any) -> Any:
            # Who writes into a part of a gradient, or into `grad.data`, writes into the gradient.
            gradient = of.get(leaf.untyped_storage().data_ptr()) if type(leaf) is torch.Tensor else None
            if gradient is None:
                return leaf
            return DeviceGradient(leaf, gradient.source, gradient.parameter, gradient.remedy, leaf)

        args, kwargs = mapped((args, kwargs), values)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        if isinstance(result, (tuple, list)) and result and isinstance(result[0], torch.Tensor):
            return mapped(result, unwritable)
        return unwritable(result)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # What autograd does within PyTorch does not pass through its Python API.
        raise _error([*args, *(kwargs or {}).values()])

    def __repr__(self, *, tensor_contents: Optional[str] = None) -> str:  # type: ignore[override]
        # Debuggers and error messages show objects at any time: this one never fails.
        return "DeviceGradient(on the device alone)" if self.held is None else repr(self.held)

    def __str__(self) -> str:
        return str(self.read())

    def __format__(self, spec: str) -> str:
        return format(self.read(), spec)

    def __deepcopy__(self, memo: Dict[int, Any]) -> Optional[torch.Tensor]:
        """Return a copy; None where it is on a parameter, whose copy is an ordinary one without gradient."""
        parameter = self.parameter()
        if self.held is not None or parameter is None:
            return self.read().clone()
        with torch._C.DisableTorchFunctionSubclass():
            return None if gradient_of(parameter) is self else self.read().clone()


def _is_metadata(func: Any) -> bool:
    name = func.__name__
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") in _METADATA_PROPERTIES
    return name in _METADATA


def _refuse_writing(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    """Refuse to write into a gradient."""
    name = func.__name__
    in_place = name in OPERATORS or name in ("__setitem__", "__set__", "__delete__")
    if in_place or kwargs.get("inplace") or (name.endswith("_") and not name.endswith("__")):
        written = list(leaves_of(args[:1]))
    else:
        written = list(leaves_of(kwargs.get("out")))
    if not any(isinstance(leaf, DeviceGradient) for leaf in written):
        # It will, once it has read them all.
        written = list(leaves_of((args, kwargs))) if any(frame_of(code) is not None for code in _CLIPPING) else []
    if written:
        raise _error(written)


def _error(arguments: List[Any]) -> CaptureError:
    gradient = next(leaf for leaf in leaves_of(arguments) if isinstance(leaf, DeviceGradient))
    return CaptureError(
        f"A gradient is written into at {current_line()}, but the device updates weights by its own gradients, which "
        f"the host can only look at. To clip them, {gradient.remedy}. They are cleared by optimizer.zero_grad()."
    )
