"""`parameter.grad` of a captured model: entries of the gradient book, and refusals of the host's own gradients."""

from __future__ import annotations

import functools
import operator
import weakref
from typing import Any, Collection, Container, Iterable, List, Optional, Protocol, Sequence, Tuple

import torch
from torch import nn

from ignite_ipu.capabilities.optimizers import ON_THE_HOST
from ignite_ipu.deferred.graph.owners import held_parameters, held_tensors, parameter_of
from ignite_ipu.deferred.tensor.device_gradient import DeviceGradient
from ignite_ipu.deferred.tensor.frames import frame_of
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.tensors.raw import gradient_of, plain, requires_grad
from ignite_ipu.program.user_code import current_line
from ignite_ipu.session.hooks import Gradients
from ignite_ipu.session.weights.tracker import Weights
from ignite_ipu.torch_names.modules import CONVERSION
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass

# So many parameters are asked for gradients in one look, and the next ones in the next, while no access was noticed.
_AT_ONCE = 32
_exists = functools.partial(operator.is_not, None)


class GradientSource(Protocol):
    """The gradients of a captured model's parameters, as PyTorch has them now."""

    def exists(self, parameter: torch.Tensor) -> bool: ...
    def of(self, parameter: torch.Tensor) -> Optional[torch.Tensor]: ...

    def bring_sum(self, parameter: torch.Tensor) -> None:
        """Bring a gradient to the host where PyTorch has added it to one of the host, or refuse that."""

    def replace(self, parameter: torch.Tensor, gradient: Optional[torch.Tensor]) -> None:
        """Follow a parameter's gradient that the loop replaces by another or None."""

    def release(self, writes: bool) -> None:
        """Follow gradients that are used, or written."""


class GradientViews:
    """Shows the gradients of a captured model's parameters, each as a `DeviceGradient` from its first read on.

    Gradients of the host are looked for in all parameters where code had one of them since the last look, or autograd
    has recorded functions of them on the host. Else they can come unnoticed only by graphs that were recorded before
    the capture, or where functions of tensors of other classes hide the weights: parameters are checked in turns.

    Args:
        model: The model whose parameters these are of.
        weights: The places of its weights, which notice accesses.
        remedy: Clipping advice for a loop that writes into them.
        source: The gradients, held weakly.

    Attributes:
        held: The views that the loop holds, by the ids of the parameters.
    """

    def __init__(self, model: nn.Module, weights: Weights, remedy: Optional[str], source: GradientSource) -> None:
        self._named: List[Tuple[str, torch.Tensor]] = list(model.named_parameters())
        self._tensors = [parameter for _, parameter in self._named]
        self._weights, self._next = weights, 0
        # `weights.detector.looks` at the time when no parameter had a gradient of the host.
        self._without = -1
        self._remedy = remedy or "use torch.nn.utils.clip_grad_norm_ over all of the model's parameters"
        self._source, self._values = weakref.ref(source), weakref.WeakMethod(source.of)
        self.held: weakref.WeakValueDictionary[int, DeviceGradient] = weakref.WeakValueDictionary()

    def _release(self, writes: bool) -> None:
        source = self._source()
        if source is not None:
            source.release(writes)

    def show(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Return `parameter.grad`."""
        others = self._of_owner(parameter)
        if others is not None:
            return others.show(parameter)
        with DisableTorchFunctionSubclass():
            found, source = gradient_of(parameter), self._source()
            converts = CONVERSION is not None and frame_of(CONVERSION) is not None
            if found is not None and source is not None and not converts:
                source.bring_sum(parameter)
                return gradient_of(parameter)
            if source is None or converts or not source.exists(parameter):
                return found
            view = self.held.get(id(parameter))
            if view is None:
                made = DeviceGradient(plain(parameter), self._values, weakref.ref(parameter), self._remedy)
                view = self.held[id(parameter)] = made
                made.release = self._release
            return view

    def put(self, parameter: torch.Tensor, gradient: Optional[torch.Tensor]) -> bool:
        """Follow `parameter.grad = gradient`, before it is done; None is for `del parameter.grad`, too.

        Returns False if it is the gradient that is there already.
        """
        others = self._of_owner(parameter)
        if others is not None:
            return others.put(parameter, gradient)
        source = self._source()
        with DisableTorchFunctionSubclass():
            if gradient is not None and (
                self.held.get(id(parameter)) is gradient or gradient_of(parameter) is gradient
            ):
                return False
        if source is not None:
            source.replace(parameter, gradient)
        return True

    def _of_owner(self, parameter: torch.Tensor) -> Optional[Gradients]:
        """Return the gradients of another loop that has a parameter, as that of an encoder within this one's model."""
        owner = parameter_of(parameter)
        shown = None if owner is None else owner[0].loop.updates.gradients.shown
        return None if shown is self else shown

    def clear(self, ids: Collection[int], available: bool) -> None:
        """Forget views of gradients that are None from now on; those that the loop holds keep their values, if any."""
        for key in [key for key in list(self.held) if key in ids]:
            view = self.held.pop(key, None)
            if available and view is not None and view.held is None:
                view.held = view.read()

    def are_held(self, ids: Collection[int]) -> bool:
        """Return whether the loop holds views of the gradients of some parameters."""
        return any(key in ids for key in list(self.held))

    def settle(self) -> None:
        """Have views that the loop holds stand for the gradients that the parameters have on the host by now."""
        views, self.held = list(self.held.values()), weakref.WeakValueDictionary()
        for view in views:
            parameter = view.parameter()
            if parameter is not None and view.held is None:
                with DisableTorchFunctionSubclass():
                    view.held, view.writable = gradient_of(parameter), True

    def names(self, ids: Container[int]) -> List[str]:
        """Return the names of some parameters."""
        return [name for name, parameter in self._named if id(parameter) in ids]

    def refuse_those_of_the_host(self, own: Container[int]) -> None:
        """Refuse an update for gradients that the host has computed."""
        for name, parameter in () if self.known_none else self._of_the_host(own):
            raise CaptureError(
                f"At {current_line()}, {name} of shape {tuple(parameter.shape)} has a gradient that the host has "
                "computed or set, which the device's update would not use. Compute the loss from the model's output "
                "in training mode; a penalty on its weights, in its forward. To drop the gradient, set "
                f"parameter.grad = None. {ON_THE_HOST}"
            )

    @property
    def known_none(self) -> bool:
        """True if no parameter had a gradient of the host at the last look at all, and none was touched since."""
        return self._weights.detector.untouched_since(self._without)

    def appear(self) -> bool:
        """Look at the next parameters for gradients of the host; after any, all are looked at."""
        first, self._next = self._next, self._next + _AT_ONCE
        if self._next >= len(self._tensors):
            self._next = 0
        with DisableTorchFunctionSubclass():
            found_some = any(map(_exists, map(gradient_of, self._tensors[first : first + _AT_ONCE])))
        if found_some:
            self._without = -1
        return found_some

    def refuse_those_of_before(self, own: Container[int]) -> None:
        """Refuse to go backward when there are gradients already: PyTorch adds to them, a device does not."""
        if self.known_none and not self.appear():
            return
        found = {id(parameter): name for name, parameter in self._of_the_host(own)}
        if not found:
            return
        # Gradients of parameters that no optimizer holds are unused; an optimizer that is not known yet may hold any.
        held = held_parameters()
        if held.isdisjoint(id(parameter) for _, parameter in self._named) or not held.isdisjoint(found):
            raise CaptureError(
                f"backward() at {current_line()} would add to gradients that the host has computed or set before "
                f"({listed(list(found.values()))}), but an update on the device is of its own gradients alone. Call "
                "optimizer.zero_grad(set_to_none=True) before the loop (with False gradients of zero are left); or use "
                "them by optimizer.step() before the model is prepared."
            )

    def _of_the_host(self, own: Container[int]) -> List[Tuple[str, torch.Tensor]]:
        """Return the parameters that have gradients which are no device's."""
        with DisableTorchFunctionSubclass():
            found = [pair for pair in self._named if gradient_of(pair[1]) is not None]
        self._without = -1 if found else self._weights.detector.looks
        return [pair for pair in found if id(pair[1]) in own]

    def zero_grad(self, optimizer: torch.optim.Optimizer, others: Sequence[torch.Tensor], set_to_none: bool) -> None:
        """Clear gradients of the host as `zero_grad` of an optimizer does; `others` are no model's."""
        held = others if self.known_none else held_tensors(optimizer)
        if held:
            clear_those_of_the_host(held, set_to_none)

    def check_all(self, parameters: Iterable[torch.Tensor], own: Container[int]) -> None:
        """Refuse to clip the gradients of some parameters only."""
        given = set(map(id, parameters))
        with DisableTorchFunctionSubclass():
            trained = [(name, each) for name, each in self._named if requires_grad(each) and id(each) in own]
            missing = [name for name, each in trained if id(each) not in given]
        if given and missing:
            raise CaptureError(
                f"clip_grad_norm_ at {current_line()} leaves out {len(missing)} trained parameters ({missing[0]}, "
                "...); a device clips the global norm of all. Pass model.parameters() of the prepared model."
            )


def clear_those_of_the_host(parameters: Iterable[Any], set_to_none: bool) -> None:
    """Clear gradients of the host as `zero_grad` does."""
    with DisableTorchFunctionSubclass():
        for parameter in parameters:
            gradient = gradient_of(parameter)
            if gradient is not None and set_to_none:
                parameter.grad = None
            elif gradient is not None:
                # As in PyTorch's zero_grad: a view cannot be detached in place.
                gradient = gradient.requires_grad_(False) if gradient.grad_fn is None else gradient.detach_()
                gradient.zero_()
