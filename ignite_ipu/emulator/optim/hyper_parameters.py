"""Hyper-parameters as the device sees them: numbers by name, each compiled in or open to change."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Dict, Iterator, Tuple


class UpdateRule(enum.Enum):
    """Update that an optimizer stands for."""

    SGD1 = "SGD1"
    """SGD whose velocity and accumulated gradient share a tensor."""
    SGD2 = "SGD2"
    """SGD whose velocity and accumulated gradient are apart."""
    ADAM = "ADAM"
    ADAMW = "ADAMW"
    ADAMW_NO_BIAS = "ADAMW_NO_BIAS"
    RMSPROP = "RMSPROP"
    RMSPROP_CENTERED = "RMSPROP_CENTERED"
    LAMB = "LAMB"
    LAMB_NO_BIAS = "LAMB_NO_BIAS"


_ADAM = ("lr", "beta1", "beta2", "eps", "weight_decay")
_RMSPROP = ("lr", "alpha", "eps", "weight_decay", "momentum")
_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov")

GROUP_VALUES: Dict[UpdateRule, Tuple[str, ...]] = {
    UpdateRule.SGD1: (*_SGD, "velocity_scaling"),
    UpdateRule.SGD2: _SGD,
    UpdateRule.ADAM: _ADAM,
    UpdateRule.ADAMW: _ADAM,
    UpdateRule.ADAMW_NO_BIAS: _ADAM,
    UpdateRule.RMSPROP: _RMSPROP,
    UpdateRule.RMSPROP_CENTERED: _RMSPROP,
    UpdateRule.LAMB: (*_ADAM, "max_weight_norm"),
    UpdateRule.LAMB_NO_BIAS: (*_ADAM, "max_weight_norm"),
}
"""What each parameter group of an optimizer says."""


@dataclasses.dataclass(frozen=True)
class HyperParameter:
    """One number, compiled in if `constant`."""

    value: float
    constant: bool


@dataclasses.dataclass(frozen=True)
class HyperParameters:
    """The numbers of one parameter group, by the names in `GROUP_VALUES`."""

    entries: Tuple[Tuple[str, HyperParameter], ...]

    @functools.cached_property
    def _by_name(self) -> Dict[str, HyperParameter]:
        # The maths asks for the same few values on every update.
        return dict(self.entries)

    def __getitem__(self, name: str) -> float:
        return self._by_name[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def get(self, name: str) -> HyperParameter:
        """Return the value of `name` with its constancy."""
        return self._by_name[name]

    def absent(self, name: str) -> bool:
        """Return whether `name` is compiled in as zero, so that the device needs neither it nor its state."""
        return self.get(name) == HyperParameter(0.0, constant=True)
