"""Stand-ins for the gradients of a captured model, which come from the device when somebody looks at them.

On the host `parameter.grad` would be None, and torch's own clipping in a captured loop would silently clip nothing.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import (
    Any,
    Callable,
    Collection,
    Container,
    Dict,
    Iterable,
    List,
    NoReturn,
    Optional,
    Protocol,
    Sequence,
    Set,
    Tuple,
)

import torch
from torch import nn

from ignite_ipu.deferred.graph.structure import mapped, words
from ignite_ipu.deferred.tensor.frames import frame_of
from ignite_ipu.deferred.tensor.in_place import OPERATORS
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.tensors.raw import gradient_of, requires_grad, set_gradient
from ignite_ipu.program.tensors.trees import leaves_of
from ignite_ipu.program.user_code import Line, current_line

__all__ = ["DeviceGradient", "DeviceGradients", "check_all_parameters", "refuse_uncleared"]

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
        """Return the values.

        Raises:
            CaptureError: There are none to be had, or none any more.
        """
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


class DeviceGradients:
    """Puts a `DeviceGradient` on each trained parameter of a model, and notices which of them the loop has taken off.

    They stay from one update to the next, since a loop over parameters in each would cost more than capturing it: a
    gradient that is taken off is let go of, and tells so.

    Args:
        model: The user's model.
        remedy: What its loop does to clip gradients; None puts nothing on parameters.
        own: Ids of the parameters to look after; None for all.

    Attributes:
        source: Weakly, what has the values of gradients.
        placed: Whether there is nothing to do for `place`.
        gone: The numbers of parameters whose gradients somebody has taken off, until `taken_off` tells.
    """

    def __init__(self, model: nn.Module, remedy: Optional[str], own: Optional[Collection[int]] = None) -> None:
        self._model = model
        self.source: Callable[[], Optional[GradientSource]] = _unknown
        self._named: List[Tuple[str, torch.Tensor]] = _named(model, own)
        self._remedy = remedy
        self._made: List[weakref.ref[DeviceGradient]] = []
        # By the number of the parameter; None where `remove` has taken the gradient off.
        self._gradients: Dict[int, Optional[weakref.ref[DeviceGradient]]] = {}
        self.placed = remedy is None
        self.gone: Set[int] = set()

    def like(self, own: Collection[int]) -> DeviceGradients:
        """Return the same for other parameters of the model."""
        return DeviceGradients(self._model, self._remedy, own)

    def of(self, parameter: torch.Tensor) -> DeviceGradient:
        """Return what stands for the gradient of a parameter."""
        with torch._C.DisableTorchFunctionSubclass():
            like = torch.Tensor.detach(parameter)
            remedy = self._remedy or "use torch.nn.utils.clip_grad_norm_ over all of the model's parameters"
            gradient = DeviceGradient(like, self.source, weakref.ref(parameter), remedy)
        self._made.append(weakref.ref(gradient))
        return gradient

    def place(self, unused: Container[int] = ()) -> None:
        """Put gradients on the parameters, where there is something to do.

        Args:
            unused: By `id`, the parameters that have none.
        """
        if self.placed or self._remedy is None:
            return
        # Touched in the ordinary way, a parameter of a model in training would download all weights first.
        with torch._C.DisableTorchFunctionSubclass():
            for number, (_, parameter) in enumerate(self._named):
                if requires_grad(parameter) and gradient_of(parameter) is None and id(parameter) not in unused:
                    gradient = self.of(parameter)
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

    def remove(self, only: Optional[Container[int]] = None) -> None:
        """Take them off, so that whoever looks at the parameters next finds ordinary ones.

        Args:
            only: By `id`, the parameters that it is about; None for all.
        """
        if not self._gradients:
            return
        with torch._C.DisableTorchFunctionSubclass():
            for number, (_, parameter) in enumerate(self._named):
                if only is None or id(parameter) in only:
                    if type(gradient_of(parameter)) is DeviceGradient:
                        self._gradients[number] = None
                        set_gradient(parameter, None)
                    if only is not None:
                        self._gradients.pop(number, None)
        if only is None:
            self._gradients = dict.fromkeys(self._gradients)
            self.placed = False

    def follow_clearing(self, available: bool) -> None:
        """Take gradients off that are None from now on; those that the loop still holds keep their values.

        Args:
            available: Whether there are values.
        """
        self.remove()
        self._gradients.clear()
        made, self._made = self._made, []
        for reference in made:
            gradient = reference()
            if gradient is not None and gradient.held is None and available:
                gradient.held = gradient.read()


def refuse_uncleared(before: Line) -> NoReturn:
    """Refuse an update from gradients of the update before, made at a line."""
    raise CaptureError(
        f"The update at {current_line()} would use the gradients of the one made at {before} again, because "
        "nothing has cleared them since; they were on the device, and are gone. Call optimizer.zero_grad() after "
        "every optimizer.step(); to accumulate gradients over several backward calls, call step() once after them."
    )


def _unknown() -> None:
    return None


def _of_the_host(parameter: torch.Tensor) -> bool:
    """Tell whether a parameter has a gradient that is no device's."""
    gradient = gradient_of(parameter)
    return gradient is not None and type(gradient) is not DeviceGradient


def _is_metadata(func: Any) -> bool:
    name = func.__name__
    if name == "__get__":
        return getattr(func.__self__, "__name__", "") in _METADATA_PROPERTIES
    return name in _METADATA


def _refuse_writing(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    """Refuse to write into a gradient.

    Raises:
        CaptureError: The function does.
    """
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


def _named(model: nn.Module, own: Optional[Collection[int]]) -> List[Tuple[str, torch.Tensor]]:
    return [(name, each) for name, each in model.named_parameters() if own is None or id(each) in own]


def check_all_parameters(
    model: nn.Module, parameters: Iterable[torch.Tensor], own: Optional[Collection[int]] = None
) -> None:
    """Refuse to clip the gradients of some parameters only.

    Args:
        model: The model.
        parameters: Those whose gradients are clipped.
        own: Ids of those that the optimizer trains; None for all.

    Raises:
        CaptureError: Parameters that are trained are missing.
    """
    given = set(map(id, parameters))
    with torch._C.DisableTorchFunctionSubclass():
        named = _named(model, own)
        missing = [name for name, each in named if requires_grad(each) and id(each) not in given]
    if given and missing:
        raise CaptureError(
            f"clip_grad_norm_ at {current_line()} leaves out {len(missing)} trained parameters ({missing[0]}, "
            "...); a device clips the global norm of all. Pass model.parameters() of the prepared model."
        )
