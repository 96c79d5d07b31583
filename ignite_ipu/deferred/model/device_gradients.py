"""Stand-ins for the gradients of a captured model, which exist on the device alone.

On the host `parameter.grad` would be None, and torch's own clipping in a captured loop would silently clip nothing.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Collection, Dict, Iterable, List, NoReturn, Optional, Sequence, Set, Tuple, Union

import torch
from torch import nn

from ignite_ipu.deferred.graph.operations import CallSignature, Operation, Shape
from ignite_ipu.deferred.graph.structure import flatten, words
from ignite_ipu.deferred.tensor.frames import frame_of
from ignite_ipu.deferred.tensor.tensor import deferred_results
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.tensors.raw import gradient_of, requires_grad, set_gradient
from ignite_ipu.program.tensors.trees import leaves_of
from ignite_ipu.program.user_code import Line, current_line

__all__ = ["DeviceGradient", "DeviceGradients", "check_all_parameters", "gradient_norm", "refuse_uncleared"]

# What converts or moves the parameters of a module, each with its gradient.
_CONVERSION = nn.Module._apply.__code__
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
        if isinstance(first, DeviceGradient) and frame_of(_CONVERSION) is not None:
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
    """Puts a `DeviceGradient` on each trained parameter of a model, and notices which of them the loop has taken off.

    They stay from one update to the next, since a loop over parameters in each would cost more than capturing it: a
    gradient that is taken off is let go of, and tells so.

    Args:
        model: The user's model.
        remedy: What its loop does to clip gradients; None puts nothing on parameters.

    Attributes:
        placed: Whether there is nothing to do for `place`.
        gone: The numbers of parameters whose gradients somebody has taken off, until `taken_off` tells.
    """

    def __init__(self, model: nn.Module, remedy: Optional[str]) -> None:
        self._named: List[Tuple[str, torch.Tensor]] = list(model.named_parameters())
        self._remedy = remedy
        # By the number of the parameter; None where `remove` has taken the gradient off.
        self._gradients: Dict[int, Optional[weakref.ref[DeviceGradient]]] = {}
        self.placed = remedy is None
        self.gone: Set[int] = set()

    def place(self) -> None:
        """Put gradients on the parameters, where there is something to do."""
        if self.placed or self._remedy is None:
            return
        # Touched in the ordinary way, a parameter of a model in training would download all weights first.
        with torch._C.DisableTorchFunctionSubclass():
            for number, (_, parameter) in enumerate(self._named):
                if requires_grad(parameter) and gradient_of(parameter) is None:
                    gradient = DeviceGradient(torch.Tensor.detach(parameter), self._remedy)
                    set_gradient(parameter, gradient)
                    self._gradients[number] = weakref.ref(gradient, functools.partial(self._note_gone, number))
        self.placed = True

    def _note_gone(self, number: int, reference: Any) -> None:
        if self._gradients.get(number) is reference:
            self.gone.add(number)
            self.placed = False

    def taken_off(self, trained: Sequence[bool]) -> Tuple[List[str], List[str]]:
        """Return the names of parameters whose gradients the loop has taken off since, and of those it has not.

        Args:
            trained: Whether each parameter is part of the update that the gradients are of. It may be frozen by now.

        Raises:
            CaptureError: The loop has put another gradient there.
        """
        self._refuse_others()
        gone, self.gone = self.gone, set()
        left = sorted(number for number in self._gradients.keys() - gone if trained[number])
        for number in gone:
            reference = self._gradients[number]
            if reference is None or reference() is None:
                del self._gradients[number]
        names, others = [[self._named[number][0] for number in numbers] for numbers in (sorted(gone), left)]
        return names, others

    def refuse_those_of_the_host(self) -> None:
        """Refuse an update for gradients that the host has computed.

        Raises:
            CaptureError: A parameter has one.
        """
        if self._remedy is not None:
            self._refuse_others()

    def refuse_those_of_before(self, held: Callable[[], Collection[int]]) -> None:
        """Refuse to go backward when there are gradients already: PyTorch adds to them, a device does not.

        Args:
            held: Returns the ids of the parameters that optimizers hold; nobody uses the gradients of others.

        Raises:
            CaptureError: There are some.
        """
        with torch._C.DisableTorchFunctionSubclass():
            found = {id(parameter): name for name, parameter in self._named if _of_the_host(parameter)}
        if not found:
            return
        # An optimizer that is not known yet may hold any.
        ids = set(held())
        if ids.isdisjoint(id(parameter) for _, parameter in self._named) or not ids.isdisjoint(found):
            raise CaptureError(
                f"backward() at {current_line()} would add to gradients that the host has computed or set before "
                f"({listed(list(found.values()))}), but an update on the device is of its own gradients alone. Call "
                "optimizer.zero_grad(set_to_none=True) before the loop (with False gradients of zero are left); or use "
                "them by optimizer.step() before the model is prepared."
            )

    def clear_those_of_the_host(self, parameters: Iterable[torch.Tensor], set_to_none: bool) -> None:
        """Do with gradients of the host what `zero_grad` does."""
        with torch._C.DisableTorchFunctionSubclass():
            for parameter in parameters:
                gradient = gradient_of(parameter)
                if gradient is None or type(gradient) is DeviceGradient:
                    continue
                if set_to_none:
                    set_gradient(parameter, None)
                else:
                    gradient.detach_().zero_()

    def _refuse_others(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            for name, parameter in self._named:
                if _of_the_host(parameter):
                    raise CaptureError(
                        f"At {current_line()}, {name} of shape {tuple(parameter.shape)} has a gradient that the host "
                        "has computed or set. The device's update would not use it, so it would be lost. Compute the "
                        "loss from what the model returns in training mode; a penalty on its weights, in its forward. "
                        "To drop the gradient, set parameter.grad = None."
                    )

    def remove(self) -> None:
        """Take them off, so that whoever looks at the parameters next finds ordinary ones."""
        if not self._gradients:
            return
        self._gradients = dict.fromkeys(self._gradients)
        self.placed = False
        with torch._C.DisableTorchFunctionSubclass():
            for _, parameter in self._named:
                if type(gradient_of(parameter)) is DeviceGradient:
                    set_gradient(parameter, None)


def refuse_uncleared(before: Line) -> NoReturn:
    """Refuse an update from gradients of the update before, made at a line."""
    raise CaptureError(
        f"The update at {current_line()} would use the gradients of the one made at {before} again, because "
        "nothing has cleared them since; they were on the device, and are gone. Call optimizer.zero_grad() after "
        "every optimizer.step(); to accumulate gradients over several backward calls, call step() once after them."
    )


def _of_the_host(parameter: torch.Tensor) -> bool:
    """Tell whether a parameter has a gradient that is no device's."""
    gradient = gradient_of(parameter)
    return gradient is not None and type(gradient) is not DeviceGradient


def _is_metadata(func: Any) -> bool:
    name = func.__name__
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") in _METADATA_PROPERTIES
    return name in _METADATA


def _error(arguments: List[Any]) -> CaptureError:
    gradient = next(leaf for leaf in leaves_of(arguments) if isinstance(leaf, DeviceGradient))
    return CaptureError(
        f"The gradient of a parameter is used at {current_line()}, but gradients exist on the device "
        f"alone. To clip them, {gradient.remedy}. They are cleared by optimizer.zero_grad()."
    )


def check_all_parameters(model: nn.Module, parameters: Union[torch.Tensor, Iterable[torch.Tensor]]) -> None:
    """Refuse to clip the gradients of some parameters only.

    Raises:
        CaptureError: Parameters that are trained are missing.
    """
    given = {id(parameters)} if isinstance(parameters, torch.Tensor) else {id(each) for each in parameters}
    with torch._C.DisableTorchFunctionSubclass():
        named = list(model.named_parameters())
        missing = [name for name, each in named if requires_grad(each) and id(each) not in given]
    if given and missing:
        raise CaptureError(
            f"clip_grad_norm_ at {current_line()} leaves out {len(missing)} trained parameters ({missing[0]}, "
            "...); a device clips the global norm of all. Pass model.parameters() of the prepared model."
        )


def gradient_norm() -> torch.Tensor:
    """Return what stands for the norm of gradients that never leave the device."""
    operation = Operation(_NORM, None, (), current_line())
    operation.problem = "the norm of the gradients stays on the device; remove the line that reads it"
    norm: torch.Tensor = deferred_results(operation)
    return norm


_NORM = CallSignature(
    None, flatten(((), {}), []), False, flatten(torch.empty(()), []), [Shape((), (), torch.float32, False)]
)
