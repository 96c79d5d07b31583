"""Warnings about an optimizer whose attributes or class do something on the host that the device does not."""

from __future__ import annotations

import logging
import math
from typing import Dict, Iterable, List, Protocol, Set, Type

import torch

from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.optim.adam import Adam, AdamW
from ignite_ipu.emulator.optim.description import OptimizerDescription
from ignite_ipu.emulator.optim.hyper_parameters import UpdateRule
from ignite_ipu.emulator.optim.lamb import LAMB
from ignite_ipu.emulator.optim.rmsprop import RMSprop
from ignite_ipu.emulator.optim.sgd import SGD

_CLASSES: Set[Type[torch.optim.Optimizer]] = {
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    SGD,
    Adam,
    AdamW,
    RMSprop,
    LAMB,
}
_READ_FROM_THE_OBJECT = {
    "accum_type",
    "bias_correction",
    "first_order_momentum_accum_type",
    "loss_scaling",
    "max_grad_norm",
    "second_order_momentum_accum_type",
    "state_dict",
    "use_combined_accum",
    "use_tf_variant",
    "velocity_accum_type",
    "velocity_scaling",
}
_UNCLIPPED = (UpdateRule.RMSPROP, UpdateRule.RMSPROP_CENTERED, UpdateRule.LAMB, UpdateRule.LAMB_NO_BIAS)


class Settings(Protocol):
    """The part of `Options` that matters here."""

    _relax_optimizer_checks: bool


class AttributeTracker:
    """Remembers the names that an executor's optimizer started with, and reports each later one once.

    Args:
        options: Says whether reports about names go to debug level, as `relaxOptimizerAttributesChecks` sets it.
    """

    def __init__(self, options: Settings) -> None:
        self._options = options
        self._names: Dict[str, Set[str]] = {}
        self._said: Set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer, description: OptimizerDescription) -> None:
        """Look at the optimizer given to `setOptimizer`; the first call says which names are expected."""
        self._check_class(optimizer)
        self._check_ineffective(optimizer, description)
        found: Dict[str, Iterable[str]] = {"optimizer attribute": vars(optimizer)}
        for index, group in enumerate(optimizer.param_groups):
            found[f"group {index} attribute"] = group
        found["default group variable"] = optimizer.defaults
        if not self._names:
            self._names = {where: set(names) for where, names in found.items()}
            return
        level = logging.DEBUG if self._options._relax_optimizer_checks else logging.WARNING
        for where, names in found.items():
            unexpected = self._unexpected(where, names)
            if unexpected:
                text = f"Ignoring unexpected {where} in {description.kind.value} optimizer: {unexpected}"
                self._say_once(level, text)

    def _unexpected(self, where: str, names: Iterable[str]) -> List[str]:
        expected = self._names.get(where)
        if expected is None:
            # A group added after wrapping is compared with those that were there.
            expected = {name for key, known in self._names.items() if key.startswith("group ") for name in known}
        return sorted(name for name in names if name not in expected and name not in _READ_FROM_THE_OBJECT)

    def _check_class(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer)
        if kind not in _CLASSES:
            self._say_once(
                logging.WARNING,
                f"{kind.__module__}.{kind.__qualname__} is subclassed from classes in torch.optim or poptorch.optim: "
                "the device runs the update of the base class, and methods overridden in the subclass are not called.",
            )

    def _check_ineffective(self, optimizer: torch.optim.Optimizer, description: OptimizerDescription) -> None:
        if any(group.get("maximize", False) for group in optimizer.param_groups):
            self._say_once(
                logging.WARNING,
                "maximize=True has no effect on the IPU: the loss is minimised. Negate the loss instead.",
            )
        if description.kind in _UNCLIPPED and getattr(optimizer, "max_grad_norm", math.inf) not in (math.inf, None):
            self._say_once(
                logging.WARNING,
                f"max_grad_norm has no effect on a {description.kind.value} optimizer: gradients are not clipped.",
            )

    def _say_once(self, level: int, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.log(level, text)
