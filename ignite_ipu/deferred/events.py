"""Events of captured loops: observers of the models of one setup, and of all loops of the process."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
from torch import nn

from ignite_ipu.deferred.graph.owners import parameter_of
from ignite_ipu.program.tensors.raw import gradient_of
from ignite_ipu.torch_names.tensors import DisableTorchFunction


class CaptureObserver:
    """Follows the captured models of one setup. Its methods do nothing; subclasses override them, and may refuse.

    `LoopObserver` follows those of the whole process, and refuses nothing.
    """

    def captured(self, model: Any) -> None:
        """Note that a `CapturedModel` captures its model's calls from now on."""

    def called(self, model: Any, recorded: bool) -> None:
        """Note a call of a captured model, which is recorded for the device's step or runs an inference program."""

    def uses(self, weight: Any) -> None:
        """Note that a loss is computed from a weight that nothing has captured, and capture the model that has it."""

    def went_backward(self, loop: Any) -> None:
        """Note that a loss of a captured `Loop` went backward."""


IGNORING = CaptureObserver()


class LoopObserver:
    """Follows all captured loops, for a tool outside of them. Its methods do nothing; subclasses override them."""

    def went_backward(self, loss: torch.Tensor) -> None:
        """Note a deferred loss that goes backward."""

    def evaluated(self, module: nn.Module, output: Any) -> None:
        """Note the output of a call of a captured model without training."""


def existing_gradients(parameters: Sequence[torch.Tensor]) -> List[Optional[bool]]:
    """Return for each parameter whether its `grad` is not None; None where only the host could have one, and has none.

    The gradients of captured models stay on the device, and their loops go on as if these were not looked at.
    """
    with DisableTorchFunction():  # as for subclasses, so for the guards of hooks against reads of gradients
        found: List[Optional[bool]] = [gradient_of(each) is not None or None for each in parameters]
        on_devices: Dict[Any, List[int]] = {}
        for number, parameter in enumerate(parameters):
            owner = None if found[number] else parameter_of(parameter)
            if owner is not None:
                on_devices.setdefault(owner[0].loop, []).append(number)
        for loop, numbers in on_devices.items():
            shown = loop.updates.gradients.shows([parameters[number] for number in numbers])
            for number, each in zip(numbers, shown):
                found[number] = each
    return found


OBSERVERS: List[LoopObserver] = []
"""The observers of this process."""


def observe(observer: LoopObserver) -> Callable[[], None]:
    """Have an observer follow all captured loops of this process; returns the function that ends it."""
    OBSERVERS.append(observer)
    return lambda: OBSERVERS.remove(observer)
