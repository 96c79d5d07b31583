"""The state of the optimizer on the device, read and sent in torch's structure."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from ignite_ipu.optimizers.changes import HyperParameters, Settings
from ignite_ipu.optimizers.conversion import Conversion
from ignite_ipu.optimizers.state import state_from_torch, state_to_torch

_Parts = Dict[str, Any]
_PARTS = ("ipu_state", "ipu_param")


@dataclasses.dataclass(frozen=True)
class SavedState:
    """State of a device's optimizer at one moment, after so many weight updates (`steps`).

    PopTorch's `set_state_dict` takes `device`, in which `ipu_state` is None before the first use; velocities in it are
    multiplied by `scaling`. Of some parameters, by number, fewer updates were made: `behind` has how many.
    """

    device: Dict[str, Any]
    scaling: float
    settings: Settings
    groups: List[Dict[str, Any]]
    steps: int
    behind: Mapping[int, int]


class DeviceState:
    """The state of a device's optimizer.

    Args:
        names: Names on the device of the optimizer's parameters, in its order.
        shapes, types: Their shapes and types.
        copying: Makes the copies from the device, and retries the ones that fail.

    Attributes:
        scaling: Factor on the velocities at hand, be they on the device or wait to be uploaded.
        behind: By number of a parameter, how many updates fewer than all it has had, of kinds whose steps only torch
            counts.
        was_sent, given_up: Whether a state was sent since the last update, and whether `give_up` was called since.
    """

    def __init__(
        self,
        conversion: Conversion,
        names: Sequence[str],
        shapes: Sequence[Tuple[int, ...]],
        types: Sequence[torch.dtype],
        copying: Callable[[Callable[[], _Parts]], _Parts],
        scaling: float,
    ) -> None:
        self._kind, self._is_the_users = conversion.kind, conversion.passed_through
        self._device, self._copying = conversion.optimizer, copying
        self.names, self._shapes, self._types = names, shapes, types
        self.scaling = scaling
        self.behind: Mapping[int, int] = {}
        self.was_sent = self.given_up = False
        self.renew_stand_in()

    def parts(self) -> Dict[str, Optional[Dict[str, torch.Tensor]]]:
        """Return the newest state in PopTorch's structure; None for both parts before the first use."""
        # The executor, whichever has the optimizer at the time, has put this method there: no other asks the device.
        current = self._copying(lambda: self._device.state_dict())
        return {name: current.get(name) for name in _PARTS}

    def copied(self) -> _Parts:
        """Return a copy of the newest state in PopTorch's structure, for `put_back`."""
        parts = self.parts()
        if not self._is_the_users:
            return parts  # PopTorch makes new tensors in each copy from the device, and here nothing writes into them
        return {
            name: None if tensors is None else {key: tensor.detach().clone() for key, tensor in tensors.items()}
            for name, tensors in parts.items()
        }

    def put_back(self, saved: SavedState) -> None:
        """Make a state the newest, when that on the device is lost."""
        self.scaling, self.behind = saved.scaling, saved.behind
        if saved.device["ipu_state"] is not None:
            self._device.set_state_dict(saved.device)

    def in_torch(
        self,
        state: Mapping[str, torch.Tensor],
        groups: Sequence[Mapping[str, Any]],
        steps: int,
        behind: Mapping[int, int],
        scaling: float,
        shares: bool = False,
    ) -> Dict[int, Dict[str, Any]]:
        """Return torch's state by parameter number for the device's `ipu_state`, after `steps` updates.

        Parameters in `behind` had so many fewer. If `shares`, its tensors may share the memory of the device's.
        """
        counts: Dict[str, Any] = {"steps": steps, "behind": behind}
        names, types, kind = self.names, self._types, self._kind
        return state_to_torch(state, names, types, groups, kind, **counts, loss_scaling=scaling, shares=shares)

    def newest(self, numbers: HyperParameters, steps: int) -> Optional[Dict[int, Dict[str, Any]]]:
        """Return the device's state as torch's by parameter number, whose tensors may share memory with PopTorch's.

        None before the first use, and of PopTorch's own optimizers, which show their state themselves.
        """
        state = None if self._is_the_users else self.parts()["ipu_state"]
        groups = numbers.groups(told=True)
        return None if state is None else self.in_torch(state, groups, steps, self.behind, self.scaling, True)

    def compare_counts(self, state: Mapping[int, Mapping[str, Any]], steps: int) -> None:
        """Note how many updates each parameter has had, of `steps` in all, by torch's state that is the newest.

        Parameters that a program does not train have none until another program trains them.
        """
        if self._kind.counts_steps and not self._kind.device_counts_steps:
            counted = {number: int(entries.get("step") or 0) for number, entries in state.items()}
            self.behind = {number: steps - counted.get(number, 0) for number in range(len(self.names))}

    def send(
        self,
        state: Mapping[int, Mapping[str, Any]],
        groups: Sequence[Mapping[str, Any]],
        variable: Collection[str],
        only: Optional[Collection[str]] = None,
    ) -> None:
        """Send torch's state by parameter number to the device.

        Args:
            groups: Hyper-parameters of each group, with the numbers of its parameters.
            variable: Hyper-parameters that are variable on the device.
            only: Names of the parameters that a program to be compiled trains, which gets their state alone. If None,
                the device gets the entries that it has now.
        """
        current = self.parts() if only is None else {}
        converted = state_from_torch(
            state,
            self.names,
            self._shapes,
            groups,
            self._kind,
            variable=variable,
            known=current.get("ipu_state"),
            loss_scaling=self.scaling,
        )
        if only is not None:
            converted = {name: tensor for name, tensor in converted.items() if parameter_of(name) in only}
        self.was_sent = True
        self._device.set_state_dict({"ipu_state": converted, "ipu_param": current.get("ipu_param") or {}})

    def rescale(self, scaling: Any) -> None:
        """Rescale velocities after a change of the loss scaling: PopTorch leaves the numbers alone."""
        factor, slots = float(scaling) / self.scaling, self._kind.slots
        scaled = tuple(slots[name] + "___" for name in self._kind.scaled)
        if factor != 1.0 and scaled and not getattr(self._device, "use_combined_accum", False):
            current = self.parts()
            state = current["ipu_state"]
            if state is not None:
                values = {name: each * factor if name.startswith(scaled) else each for name, each in state.items()}
                self._device.set_state_dict({**current, "ipu_state": values})
        self.scaling = float(scaling)

    @property
    def loaded(self) -> bool:
        """True if a state was loaded that the device has not trained with yet."""
        ask = self._is_the_users and not self.given_up
        return self.was_sent or (ask and bool(self._device.ipu_state_is_dirty))

    def give_up(self) -> None:
        """Expect nothing newer from the device, which may no longer answer: the values read last are the newest."""
        # A state that detaching keeps for the next time has not been loaded by anybody.
        self.was_sent, self.given_up = self.loaded, True
        self._device.host_state_is_dirty = False
        newest = self._device.state_dict()
        if newest.get("ipu_state") is not None:
            self._device.set_state_dict(newest)

    def renew_stand_in(self) -> None:
        """Have the optimizer's present variables in those that stand in for it; to be called before it has a state."""
        self._stand_in = copy.copy(self._device)

    def stand_in(self) -> Any:
        """Return an optimizer to leave with an executor in place of the device's, which belongs to one at a time."""
        return copy.copy(self._stand_in)


def parameter_of(name: str) -> str:
    """Return the parameter that a tensor of the device's state belongs to, by their names there."""
    return name.split("___", 1)[-1]
