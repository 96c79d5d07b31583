"""The user's optimizer while a link shows its state: of a derived class, whose steps on the host are refused."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict, Mapping, Protocol, Sequence, Tuple

import torch
from torch.utils.hooks import RemovableHandle

from ignite_ipu.errors import OptimizerError
from ignite_ipu.program.derived_class import derived_once, standing_for

_LINK = "_ignite_ipu_link"


class ShowsState(Protocol):
    """A link to the optimizer on the device, whose state it shows."""

    def show_state(self, hands_out: bool = True) -> Any:
        """Return the state, as new as the device's, handed out to code, or of each parameter to be read at once."""

    def replace_state(self, state: Any) -> None:
        """Take over a state in place of the device's."""

    def load_state(self, load: Callable[[Dict[str, Any]], None], state_dict: Dict[str, Any]) -> None:
        """Load a state dictionary by a function, and send its content to the device."""


def link_optimizer(
    optimizer: torch.optim.Optimizer, link: ShowsState, shows: bool
) -> weakref.finalize[Any, ShowsState]:
    """Let an optimizer refuse steps on the host, and, if it `shows` it, show and take the state of a link that lives.

    Its class is replaced by a subclass of the same name. Copies and pickles of it are of the original class, so they
    need neither this package nor PopTorch to be read. So are optimizers that code makes by its class. PopTorch's own
    optimizers have their own way to the device.

    Returns a finalizer that makes it an ordinary one again, with the state that it showed last.
    """
    if _LINK in vars(optimizer):
        raise OptimizerError(
            f"This {type(optimizer).__name__} already trains a model on an IPU; an optimizer has one state. Make a new "
            "optimizer, or close the first session (trainer.ipu.close())."
        )
    if shows:
        vars(optimizer)[_LINK] = weakref.ref(link)
        own_class: Any = type(optimizer)
        optimizer.__class__ = _linked_class(own_class)
    refusal = optimizer.register_step_pre_hook(_refuse_step)
    unlink = weakref.finalize(link, _unlink, weakref.ref(optimizer), refusal)
    unlink.atexit = False
    return unlink


def newest_state(optimizer: torch.optim.Optimizer) -> Sequence[Tuple[Any, Mapping[str, Any]]]:
    """Return an optimizer's newest state of each parameter, to be read at once: it may share the device's memory.

    The optimizer goes on as if nobody had looked at it.
    """
    link = vars(optimizer).get(_LINK)
    return [*optimizer.state.items()] if link is None else link().show_state(hands_out=False)


def _unlink(reference: weakref.ref[torch.optim.Optimizer], refusal: RemovableHandle) -> None:
    refusal.remove()
    optimizer = reference()
    if optimizer is not None and _LINK in vars(optimizer):
        base: Any = type(optimizer).__mro__[1]
        if type(optimizer) is _linked_class(base):  # code may have given it another class
            optimizer.__class__ = base
        del vars(optimizer)[_LINK]


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

    def setstate(self: Any, state: Dict[str, Any]) -> None:
        if "state" in state:
            self.state = state["state"]  # before PyTorch's own function reads it
        base.__setstate__(self, state)

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
        "__setstate__": setstate,
        "add_param_group": add_param_group,
        "load_state_dict": load_state_dict,
        "state": property(get_state, set_state),
    }
    return standing_for(base)(base.__name__, (base,), members)
