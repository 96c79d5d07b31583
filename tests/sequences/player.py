"""One loop over small models, on which events are played, and everything that the loop looks at on its way."""

from __future__ import annotations

import copy
import random
from importlib import import_module
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.pipeline.profiling.layers import layer_names

if TYPE_CHECKING:
    from tests.sequences.worlds import World

Event = Tuple[str, int]
"""The name of an event, and a number: of the optimizer or of the parameter that it is about."""
Seen = List[Tuple[str, Any]]
_DATA = torch.Generator().manual_seed(11)
X = torch.randn(64, 4, 3, generator=_DATA)
Y = torch.randint(0, 2, (64, 4), generator=_DATA)
LONG_NORM, SHORT_NORM = 5.0, 0.05


class Player:
    """One loop over one world.

    Args:
        world: The name of the world.
        kinds: The kinds of its optimizers.
        update: The setting of the captured loop; None for an eager one.
        spread: Whether the models lie on two IPUs.
        rounding: Seed of noise in the last bits of the weights at the start; None for none.
    """

    def __init__(
        self,
        world: str,
        kinds: Sequence[str],
        update: Optional[str],
        spread: bool = False,
        rounding: Optional[int] = None,
    ) -> None:
        # torch.manual_seed also keeps a seed, with the stack, for each kind of GPU that is not used yet.
        torch.default_generator.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        # By name, so that the code of this loop names its own world alone.
        self.world: World = _class_of(world)(kinds)
        self.modules, self.optimizers = self.world.modules, self.world.optimizers
        if rounding is not None:
            noise = torch.Generator().manual_seed(rounding)
            for parameter in [each for module in self.modules for each in module.parameters()]:
                parameter.data.mul_(1 + 2e-7 * torch.randn(parameter.shape, generator=noise))
        self.parameters = list({id(p): p for module in self.modules for p in module.parameters()}.values())
        self.start = copy.deepcopy([module.state_dict() for module in self.modules])
        self.optimizer_start = copy.deepcopy([optimizer.state_dict() for optimizer in self.optimizers])
        self.loss: Optional[torch.Tensor] = None
        self.losses: List[torch.Tensor] = []
        self.batch = self.number = 0
        self.last = ""
        # A list would be searched for values that forward may read.
        self._seen: SimpleQueue[Tuple[str, Any]] = SimpleQueue()
        # Values that events keep for later ones.
        self.schedulers: Dict[int, Any] = {}
        self.averaged: Dict[int, Any] = {}
        self.averages: List[torch.Tensor] = []
        self.kept: List[Optional[torch.Tensor]] = []
        self.held: List[torch.Tensor] = []
        self.hooks: List[Any] = []
        self.looking: List[Any] = []
        self.saved, self.saved_optimizers = self.start, self.optimizer_start
        if update is not None:
            settings: Dict[str, Any] = {} if update == "device" else {"update": update}
            if spread:
                settings.update(pipeline=dict(map(over_two_ipus, self.modules)), execution="sharded")
            config = IPUConfig(**settings)
            if len(self.optimizers) == 1:
                ipu_prepare(self.optimizers[0], *self.modules, config=config)
            else:
                for optimizer, module in zip(self.optimizers, self.modules):
                    ipu_prepare(optimizer, module, config=config)

    def note(self, values: Sequence[Any]) -> None:
        for value in values:
            self._seen.put((f"{self.number} {self.last}", copied(value)))

    def seen(self) -> Seen:
        """Return the values that the loop has looked at since the last time, with number and name of their events."""
        return [self._seen.get() for _ in range(self._seen.qsize())]

    def parameter(self, which: int) -> torch.Tensor:
        return self.parameters[which % len(self.parameters)]

    def optimizer(self, which: int) -> torch.optim.Optimizer:
        return self.optimizers[which % len(self.optimizers)]

    def own(self, which: int) -> List[torch.Tensor]:
        return [parameter for group in self.optimizer(which).param_groups for parameter in group["params"]]


def _class_of(world: str) -> Any:
    for module, table in (("worlds", "WORLDS"), ("joined_worlds", "JOINED"), ("composed_worlds", "COMPOSED")):
        known = getattr(import_module(f"tests.sequences.{module}"), table)
        if world in known:
            return known[world]
    raise KeyError(world)


def over_two_ipus(module: nn.Module) -> Tuple[str, List[Tuple[str, int]]]:
    """Return the name of a module's class, and layers at which a stage on each of two IPUs begins."""
    names = layer_names(module)
    second = [(names[len(names) // 2], 1)] if len(names) > 1 else []
    return type(module).__name__, [(names[0], 0), *second]


def copied(value: Any) -> Any:
    """Return a value as a structure of ordinary tensors and Python values."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() + 0
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [copied(each) for each in value]
    return value
