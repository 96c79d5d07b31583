"""Gradients that are on the device alone: their stand-ins, and refusals of those that a device does not compute."""

from __future__ import annotations

import inspect
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from ignite_ipu.capabilities.gradients import GRADIENTS_ON_THE_HOST
from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.deferred.graph.structure import mapped
from ignite_ipu.deferred.tensor.frames import frame_of
from ignite_ipu.deferred.tensor.functions import METADATA, attribute_of, written
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.operators.words import word_set
from ignite_ipu.program.reached import reached
from ignite_ipu.program.tensors.raw import gradient_of, set_gradient
from ignite_ipu.program.tensors.trees import leaves_of
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.modules import CONVERSION
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass, make_wrapper_subclass

# Weakly, a function that returns the value of a parameter's gradient, and runs the update first if needed; None if
# PyTorch has none.
GradientSource = Callable[[], Optional[Callable[[torch.Tensor], Optional[torch.Tensor]]]]
# Functions that convert or move the parameters of a module, each with its gradient.
_CLIPPING = [inspect.unwrap(clip).__code__ for clip in (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_)]
# Without the names that PyTorch's dispatcher looks up on a tensor, which has no memory here.
# Tensors that are no weights, and whose gradients came from the device.
_RETURNED: Any = WeakTensorKeyDictionary()
_METADATA = METADATA - word_set("dense_dim sparse_dim is_pinned is_same_size result_type")
_ATTRIBUTES = _METADATA | {"requires_grad", "grad", "grad_fn"}


class DeviceGradient(torch.Tensor):
    """The `.grad` of a captured parameter, or a part of one: its values are fetched on a read.

    Writes are refused, unless `release` brings the gradients to the host.

    Attributes:
        held: The values, of a gradient of the past or of one that the host has.
        writable: Whether these are the gradient itself, and no copy.
        whole: The gradient that this is a part of, in the same memory.
    """

    source: GradientSource
    parameter: Callable[[], Optional[torch.Tensor]]
    remedy: str
    held: Optional[torch.Tensor]
    writable: bool
    release: Callable[[bool], None]
    whole: Optional[DeviceGradient]

    @staticmethod
    def __new__(
        cls,
        like: torch.Tensor,
        source: GradientSource,
        parameter: Callable[[], Optional[torch.Tensor]],
        remedy: str,
        held: Optional[torch.Tensor] = None,
    ) -> DeviceGradient:
        gradient: DeviceGradient = make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device, requires_grad=False
        )
        gradient.source, gradient.parameter, gradient.remedy, gradient.held = source, parameter, remedy, held
        gradient.writable, gradient.release, gradient.whole = False, _keep, None
        return gradient

    def read(self) -> torch.Tensor:
        if self.held is not None:
            return self.held
        source, parameter = self.source(), self.parameter()
        values = None if source is None or parameter is None else source(parameter)
        if values is None:
            raise CaptureError(
                f"A gradient is read at {current_line()} of a parameter of shape {tuple(self.shape)} that has none: "
                "the loss does not depend on it, or it was cleared. In the first update this is known only once its "
                "values are read; later parameter.grad is None. Leave the parameter out, or read after "
                "optimizer.step()."
            )
        return values

    def release_all(self, writes: bool) -> None:
        """Follow a use, which may bring the gradient to the host that this is or is a part of."""
        whole = self.whole
        if whole is None:
            self.release(writes)
            return
        whole.release(writes)
        if whole.writable and whole.held is not None and self.held is not None and not self.writable:
            with DisableTorchFunctionSubclass():
                place = self.held.size(), self.held.stride(), self.held.storage_offset()
                self.held, self.writable = whole.held.as_strided(*place), True

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__
        if attribute_of(func) in _ATTRIBUTES if name == "__get__" else name in _METADATA:
            with DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, DeviceGradient) and CONVERSION is not None and frame_of(CONVERSION) is not None:
            # Conversions of the parameter's values do not apply to missing values.
            return first
        views = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, DeviceGradient)]
        found = _written(func, args, kwargs)
        for view in views:
            view.release_all(bool(found))
        if all(view.writable for view in views):
            args, kwargs = mapped((args, kwargs), _as_held)
            return func(*args, **kwargs)
        if found:
            raise _error(found)
        of: Dict[int, DeviceGradient] = {}

        def values(leaf: Any) -> Any:
            if not isinstance(leaf, DeviceGradient):
                return leaf
            read = leaf.read()
            of[read.untyped_storage().data_ptr()] = leaf
            return read

        def unwritable(leaf: Any) -> Any:
            # Who writes into a part of a gradient, or into `grad.data`, writes into the gradient.
            gradient = of.get(leaf.untyped_storage().data_ptr()) if type(leaf) is torch.Tensor else None
            if gradient is None:
                return leaf
            part = DeviceGradient(leaf, gradient.source, gradient.parameter, gradient.remedy, leaf)
            part.whole = gradient if gradient.whole is None else gradient.whole
            return part

        args, kwargs = mapped((args, kwargs), values)
        result = func(*args, **kwargs)  # as other classes of the arguments, such as weights, have it
        if isinstance(result, (tuple, list)) and result and isinstance(result[0], torch.Tensor):
            return mapped(result, unwritable)
        return unwritable(result)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Calls of autograd within PyTorch do not pass through its Python API.
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
        with DisableTorchFunctionSubclass():
            return None if gradient_of(parameter) is self else self.read().clone()


def with_values(arguments: Any) -> Any:
    """Return the arguments of a function that reads gradients, with ordinary tensors of their values."""
    found = [leaf for leaf in leaves_of(arguments) if isinstance(leaf, DeviceGradient)]
    for gradient in found:
        gradient.release_all(False)
    return mapped(arguments, _read) if found else arguments


def _read(leaf: Any) -> Any:
    return leaf.read() if isinstance(leaf, DeviceGradient) else leaf


def _keep(writes: bool) -> None:
    """Leave the gradient on the device."""


def _as_held(leaf: Any) -> Any:
    return leaf.held if isinstance(leaf, DeviceGradient) else leaf


def _written(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> List[Any]:
    """Return the tensors that a function writes into, if a gradient is one of them."""
    found = list(leaves_of(written(func.__name__, args, kwargs)))
    if not any(isinstance(leaf, DeviceGradient) for leaf in found):
        # It will, once it has read them all.
        found = list(leaves_of((args, kwargs))) if any(frame_of(code) is not None for code in _CLIPPING) else []
    return found


def _error(arguments: List[Any]) -> CaptureError:
    gradient = next(leaf for leaf in leaves_of(arguments) if isinstance(leaf, DeviceGradient))
    return CaptureError(
        f"A gradient is written into at {current_line()}, but the device updates weights by its own gradients, which "
        f"the host can only look at. To clip them, {gradient.remedy}. They are cleared by optimizer.zero_grad()."
    )


def _no_gradient(tensor: torch.Tensor) -> NoReturn:
    """Refuse to return the gradient of a tensor that is no weight."""
    raise CaptureError(
        f"The gradient is read at {current_line()} of a tensor of shape {tuple(tensor.shape)} that is no weight of "
        "a captured model. If it is a parameter, make it one of the model that is prepared, or give it to its "
        f"optimizer as an nn.Parameter. {GRADIENTS_ON_THE_HOST}"
    )


def withhold_gradient(tensor: torch.Tensor) -> None:
    """Refuse uses of a tensor's gradient, which a device does not compute."""
    if not isinstance(tensor.grad, DeviceGradient):
        with DisableTorchFunctionSubclass():
            gradient = DeviceGradient(tensor.detach(), lambda: _no_gradient, weakref.ref(tensor), GRADIENTS_ON_THE_HOST)
            set_gradient(tensor, gradient)


def refuse_weights_of_the_host(tensor: torch.Tensor, line: Line) -> None:
    """Refuse a tensor that PyTorch has computed on the host from captured weights, as a penalty on them is."""
    names = _weights_behind(tensor)
    if not names:
        return
    raise CaptureError(
        f"A tensor of shape {tuple(tensor.shape)} at {line} was computed from weights of the captured model "
        f"({listed(names)}) by the host. Its shape depends on values, or the weights were captured later. Its "
        "gradient would not reach the device. Prepare models and optimizers first, and keep shapes fixed (a mask that "
        "multiplies). To read the value alone, compute it under torch.no_grad()."
    )


def _weights_behind(tensor: torch.Tensor) -> List[str]:
    """Return the names of the captured parameters that a tensor of the host would be differentiated to."""
    return sorted(owner[1] for owner in map(parameter_of, _leaves_behind(tensor)) if owner is not None)


def _leaves_behind(tensor: torch.Tensor) -> List[torch.Tensor]:
    """Return the leaves of the host's graph that a tensor would be differentiated to."""
    if tensor.is_leaf:
        return [tensor]
    start: List[Any] = [tensor.grad_fn]
    nodes = reached(start, lambda node: [before for before, _ in getattr(node, "next_functions", ())])
    # Nodes that add up the gradient of a leaf have the leaf.
    return [node.variable for node in nodes if hasattr(node, "variable")]


def note_returned(tensor: torch.Tensor) -> None:
    """Note that the device's gradient of a tensor has come to the host, and goes on from there."""
    for leaf in _leaves_behind(tensor):
        _RETURNED[leaf] = True


def has_returned(tensor: torch.Tensor) -> bool:
    """Return whether a tensor that is no weight has had a gradient from the device."""
    return tensor in _RETURNED
