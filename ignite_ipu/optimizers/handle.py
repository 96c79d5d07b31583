"""Handle of the device's optimizer: a user's torch optimizer that shows and takes the state on the device.

The object stays the user's: its class is replaced by a subclass of the same name, and given back when the link ends.
Copies and pickles of it are of the original class, so they need neither this package nor PopTorch to be read.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Dict, Protocol

import torch
from torch.utils.hooks import RemovableHandle

from ignite_ipu.errors import OptimizerError
from ignite_ipu.program.derived_class import derived_once

__all__ = ["StateKeeper", "link_handle"]

_LINK = "_ignite_ipu_link"


class StateKeeper(Protocol):
    """Keeper of the state that a linked optimizer shows."""

    def refresh_state(self) -> None:
        """Bring the optimizer's host state up to date."""

    def show_state(self) -> Any:
        """Return the newest state, which whoever asked may write into."""

    def replace_state(self, state: Any) -> None:
        """Make another mapping the state."""

    def load_state(self, load: Any, state_dict: Dict[str, Any]) -> None:
        """Load a state dict by calling `load(state_dict)`, and pass it on to the device."""


def _is_linked(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the optimizer shows the state of a device."""
    return _LINK in optimizer.__dict__


def link_handle(
    optimizer: torch.optim.Optimizer, keeper: StateKeeper, shows: bool
) -> weakref.finalize[Any, StateKeeper]:
    """Let the optimizer refuse steps on the host, and show and take its state through `keeper`, as long as that lives.

    Args:
        optimizer: The user's; it does not keep `keeper` alive.
        shows: Whether it does that; PopTorch's own optimizers have their own way to the device.

    Returns:
        What makes it an ordinary one again, with the state that it showed last.
    """
    if _is_linked(optimizer):
        raise OptimizerError(
            f"This {type(optimizer).__name__} already trains a model on an IPU; an optimizer has one state. Make a new "
            "optimizer, or close the first session (trainer.ipu.close())."
        )
    if shows:
        optimizer.__dict__[_LINK] = weakref.ref(keeper)
        own_class: Any = type(optimizer)
        optimizer.__class__ = _linked_class(own_class)
    refusal = optimizer.register_step_pre_hook(_refuse_step)
    unlink = weakref.finalize(keeper, _unlink, weakref.ref(optimizer), refusal)
    unlink.atexit = False
    return unlink


def _unlink(reference: weakref.ref[torch.optim.Optimizer], refusal: RemovableHandle) -> None:
    refusal.remove()
    optimizer = reference()
    if optimizer is not None and _is_linked(optimizer):
        optimizer.__class__ = type(optimizer).__mro__[1]
        del optimizer.__dict__[_LINK]


def _refuse_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    raise OptimizerError(
        f"{type(optimizer).__name__}.step() was called, but the weights are on an IPU and updated there within each "
        "training step; there are no gradients on the host. Remove the call."
    )


@derived_once
def _linked_class(base: Any) -> Any:
    def get_state(self: Any) -> Any:
        return self.__dict__[_LINK]().show_state()

    def set_state(self: Any, value: Any) -> None:
        self.__dict__[_LINK]().replace_state(value)

    def load_state_dict(self: Any, state_dict: Dict[str, Any]) -> None:
        self.__dict__[_LINK]().load_state(functools.partial(base.load_state_dict, self), state_dict)

    def add_param_group(self: Any, param_group: Dict[str, Any]) -> None:
        raise OptimizerError(
            "A parameter group cannot be added to an optimizer that trains on an IPU: its update is compiled. Add it "
            "before creating the trainer."
        )

    def reduce_ex(self: Any, protocol: Any) -> Any:
        return object.__new__, (base,), self.__getstate__()

    members = {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": reduce_ex,
        "add_param_group": add_param_group,
        "load_state_dict": load_state_dict,
        "state": property(get_state, set_state),
    }
    return type(base.__name__, (base,), members)
