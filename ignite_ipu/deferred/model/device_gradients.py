"""Stand-ins for the gradients of a captured model, which come from the device when somebody looks at them.

On the host `parameter.grad` would be None, and torch's own clipping in a captured loop would silently clip nothing.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Collection, Container, Dict, Iterable, List, NoReturn, Optional, Sequence, Set, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import held_parameters
from ignite_ipu.deferred.tensor.device_gradient import DeviceGradient
from ignite_ipu.errors import CaptureError, listed
from ignite_ipu.program.tensors.raw import gradient_of, requires_grad, set_gradient
from ignite_ipu.program.user_code import Line, current_line
from ignite_ipu.torch_names.tensors import DisableTorchFunctionSubclass


class DeviceGradients:
    """Puts a `DeviceGradient` on each trained parameter of a model, and notices which of them the loop has taken off.

    They stay from one update to the next, since a loop over parameters in each would cost more than capturing it: a
    gradient that is taken off is let go of, and tells so.

    Args:
        remedy: What the model's loop does to clip gradients; None puts nothing on parameters.
        source: The method, held weakly, that returns the value of a parameter's gradient.
        own: Ids of the parameters to look after; None for all.

    Attributes:
        placed: Whether there is nothing to do for `place`.
        gone: The numbers of parameters whose gradients somebody has taken off, until `taken_off` tells.
    """

    def __init__(
        self,
        model: nn.Module,
        remedy: Optional[str],
        source: Callable[[torch.Tensor], Optional[torch.Tensor]],
        own: Optional[Collection[int]] = None,
    ) -> None:
        self._source = weakref.WeakMethod(source)
        self._named = {
            number: pair for number, pair in enumerate(model.named_parameters()) if own is None or id(pair[1]) in own
        }
        self._remedy = remedy
        self._made: List[weakref.ref[DeviceGradient]] = []
        # By the number of the parameter; None where `remove` has taken the gradient off.
        self._gradients: Dict[int, Optional[weakref.ref[DeviceGradient]]] = {}
        self.placed = remedy is None
        self.gone: Set[int] = set()

    def of(self, parameter: torch.Tensor) -> DeviceGradient:
        with DisableTorchFunctionSubclass():
            like = torch.Tensor.detach(parameter)
            remedy = self._remedy or "use torch.nn.utils.clip_grad_norm_ over all of the model's parameters"
            gradient = DeviceGradient(like, self._source, weakref.ref(parameter), remedy)
        self._made.append(weakref.ref(gradient))
        return gradient

    def place(self, unused: Container[int] = ()) -> None:
        """Put gradients on the parameters, without those whose ids are `unused`, where there is something to do."""
        if self.placed or self._remedy is None:
            return
        # Touched in the ordinary way, a parameter of a model in training would download all weights first.
        with DisableTorchFunctionSubclass():
            for number, (_, parameter) in self._named.items():
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

        What is `trained` is part of the update that the gradients are of; it may be frozen by now.
        """
        self.refuse_those_of_the_host()
        gone, self.gone = self.gone, set()
        left = sorted(number for number in self._gradients.keys() - gone if trained[number])
        for number in gone:
            reference = self._gradients[number]
            if reference is None or reference() is None:
                del self._gradients[number]
        names, others = [[self._named[number][0] for number in numbers] for numbers in (sorted(gone), left)]
        return names, others

    def refuse_those_of_the_host(self) -> None:
        """Refuse an update for gradients that the host has computed."""
        for name, parameter in self._of_the_host() if self._remedy is not None else ():
            raise CaptureError(
                f"At {current_line()}, {name} of shape {tuple(parameter.shape)} has a gradient that the host has "
                "computed or set. The device's update would not use it, so it would be lost. Compute the loss from "
                "what the model returns in training mode; a penalty on its weights, in its forward. To drop the "
                "gradient, set parameter.grad = None."
            )

    def refuse_those_of_before(self) -> None:
        """Refuse to go backward when there are gradients already: PyTorch adds to them, a device does not."""
        found = {id(parameter): name for name, parameter in self._of_the_host()}
        if not found:
            return
        # Nobody uses the gradients of what no optimizer holds; one that is not known yet may hold any.
        held = held_parameters()
        if held.isdisjoint(id(parameter) for _, parameter in self._named.values()) or not held.isdisjoint(found):
            raise CaptureError(
                f"backward() at {current_line()} would add to gradients that the host has computed or set before "
                f"({listed(list(found.values()))}), but an update on the device is of its own gradients alone. Call "
                "optimizer.zero_grad(set_to_none=True) before the loop (with False gradients of zero are left); or use "
                "them by optimizer.step() before the model is prepared."
            )

    def _of_the_host(self) -> List[Tuple[str, torch.Tensor]]:
        """Return the parameters that have gradients which are no device's."""
        with DisableTorchFunctionSubclass():
            return [
                pair for pair in self._named.values() if type(gradient_of(pair[1])) not in (type(None), DeviceGradient)
            ]

    def check_all(self, parameters: Iterable[torch.Tensor]) -> None:
        """Refuse to clip the gradients of some parameters only."""
        given = set(map(id, parameters))
        with DisableTorchFunctionSubclass():
            missing = [name for name, each in self._named.values() if requires_grad(each) and id(each) not in given]
        if given and missing:
            raise CaptureError(
                f"clip_grad_norm_ at {current_line()} leaves out {len(missing)} trained parameters ({missing[0]}, "
                "...); a device clips the global norm of all. Pass model.parameters() of the prepared model."
            )

    def clear_those_of_the_host(self, parameters: Iterable[torch.Tensor], set_to_none: bool) -> None:
        with DisableTorchFunctionSubclass():
            for parameter in parameters:
                gradient = gradient_of(parameter)
                if gradient is None or type(gradient) is DeviceGradient:
                    continue
                if set_to_none:
                    set_gradient(parameter, None)
                else:
                    gradient.detach_().zero_()

    def remove(self, only: Optional[Container[int]] = None) -> None:
        """Take them off, of parameters with some ids or of all, so that whoever looks next finds ordinary ones."""
        if not self._gradients:
            return
        with DisableTorchFunctionSubclass():
            for number, (_, parameter) in self._named.items():
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
        """Take gradients off that are None from now on; those that the loop still holds keep their values, if any."""
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
