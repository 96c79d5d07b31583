"""Small models with their optimizers: the objects that a sequence of events is played on."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

import torch
import torch.nn.functional as F
from torch import nn

Optimizers = List[torch.optim.Optimizer]
_KINDS: Dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}
KINDS = tuple(_KINDS)


class World:
    """Models and optimizers of one loop.

    Attributes:
        modules: The prepared models, each called by itself.
        optimizers: Of the kinds given, which hold the parameters of `modules` together unless a world says otherwise.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.modules: List[nn.Module] = self.make()
        self.optimizers: Optimizers = [
            _KINDS[kind]([parameter for module in modules for parameter in module.parameters()])
            for kind, modules in zip(kinds, self.groups())
        ]

    def make(self) -> List[nn.Module]:
        raise NotImplementedError

    def groups(self) -> List[List[nn.Module]]:
        """Return the modules of each optimizer."""
        return [self.modules]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.modules[0](x), y)


class Perceptron(World):
    def make(self) -> List[nn.Module]:
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))]


class BatchNorm(World):
    def make(self) -> List[nn.Module]:
        return [nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))]


class _Tied(nn.Module):
    """A layer that is called twice, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(2, 2)
        self.again = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.again(torch.tanh(self.first(x))))
        return out


class Tied(World):
    def make(self) -> List[nn.Module]:
        return [_Tied()]


class Lazy(World):
    """A layer whose input size the first batch decides; the optimizer is made after a first look."""

    def make(self) -> List[nn.Module]:
        model = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.Linear(4, 2))
        with torch.no_grad():
            model(torch.zeros(1, 3))
        return [model]


class _Counting(nn.Module):
    """A layer that keeps an average of its inputs."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        out: torch.Tensor = self.linear(x)
        return out


class Buffers(World):
    def make(self) -> List[nn.Module]:
        return [_Counting()]


class TwoModels(World):
    """An encoder and a head, each with its own optimizer."""

    def make(self) -> List[nn.Module]:
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2)]

    def groups(self) -> List[List[nn.Module]]:
        return [[module] for module in self.modules]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.modules[1](self.modules[0](x)), y)


class _Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log_variance = nn.Parameter(torch.zeros(()))

    def forward(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(out, y) * torch.exp(-self.log_variance) + self.log_variance


class Criterion(World):
    """A loss with a parameter, which the optimizer of the model holds."""

    def make(self) -> List[nn.Module]:
        return [nn.Linear(3, 2), _Weighted()]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.modules[1](self.modules[0](x), y)
        return loss


WORLDS: Dict[str, Any] = {
    each.__name__: each for each in (Perceptron, BatchNorm, Tied, Lazy, Buffers, TwoModels, Criterion)
}
