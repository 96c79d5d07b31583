"""Warnings about an optimizer whose attributes or class do something on the host that the device does not."""

from __future__ import annotations

import logging
import math
from typing import Dict, Iterable, Set

import torch

from ignite_ipu.emulator.logs import logger
from ignite_ipu.emulator.optim.description import OptimizerDescription, UpdateRule
from ignite_ipu.emulator.optim.optimizer import EXTRAS, LAMB, SGD, Adam, AdamW, RMSprop
from ignite_ipu.emulator.options import Options

_TORCHS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
_CLASSES = {*_TORCHS, SGD, Adam, AdamW, RMSprop, LAMB}
_READ_FROM_THE_OBJECT = {*EXTRAS, "state_dict"}
_UNCLIPPED = (UpdateRule.RMSPROP, UpdateRule.RMSPROP_CENTERED, UpdateRule.LAMB, UpdateRule.LAMB_NO_BIAS)


class AttributeTracker:
    """Remembers the names that an executor's optimizer started with, and reports each later one once.

    Reports about names go to debug level where `relaxOptimizerAttributesChecks` says so.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._names: Dict[str, Set[str]] = {}
        self._said: Set[str] = set()

    def check(self, optimizer: torch.optim.Optimizer, description: OptimizerDescription) -> None:
        """Look at the optimizer given to `setOptimizer`; the first call says which names are expected."""
        kind = type(optimizer)
        if kind not in _CLASSES:
            self._say_once(
                logging.WARNING,
                f"{kind.__module__}.{kind.__qualname__} is subclassed from classes in torch.optim or poptorch.optim: "
                "the device runs the update of the base class, and methods overridden in the subclass are not called.",
            )
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
        found: Dict[str, Iterable[str]] = {"optimizer attribute": vars(optimizer)}
        for index, group in enumerate(optimizer.param_groups):
            found[f"group {index} attribute"] = group
        found["default group variable"] = optimizer.defaults
        if not self._names:
            self._names = {where: set(names) for where, names in found.items()}
            return
        level = logging.DEBUG if self._options._relax_optimizer_checks else logging.WARNING
        # A group added after wrapping is compared with those that were there.
        any_group = {name for key, known in self._names.items() if key.startswith("group ") for name in known}
        for where, names in found.items():
            unexpected = sorted(set(names) - self._names.get(where, any_group) - _READ_FROM_THE_OBJECT)
            if unexpected:
                text = f"Ignoring unexpected {where} in {description.kind.value} optimizer: {unexpected}"
                self._say_once(level, text)

    def _say_once(self, level: int, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.log(level, text)
