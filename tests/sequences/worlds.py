"""Small models with their optimizers: the objects that a sequence of events is played on."""

from __future__ import annotations

import warnings
from typing import Any, Callable, Dict, List, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

Optimizers = List[torch.optim.Optimizer]


class _SignOfMomentum(torch.optim.Optimizer):
    """An optimizer of one's own: it moves weights by the sign of an average of their gradients."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                average.mul_(0.9).add_(parameter.grad, alpha=0.1)
                parameter.sub_(group["lr"] * average.sign())
        return loss


_KINDS: Dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}
KINDS = tuple(_KINDS)
_ON_THE_HOST: Dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=3),
    "SignOfMomentum": _SignOfMomentum,
}
KINDS_ON_THE_HOST = tuple(_ON_THE_HOST)
"""Kinds that a device has not, or not in the same numbers."""


class World:
    """Models and optimizers of one loop.

    Attributes:
        modules: The prepared models, each called by itself.
        optimizers: Of the kinds given, which hold the parameters of `modules` together unless a world says otherwise.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.modules: List[nn.Module] = self.make()
        self.optimizers: Optimizers = [
            {**_KINDS, **_ON_THE_HOST}[kind]([parameter for module in modules for parameter in module.parameters()])
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


class Parts(World):
    """A model of which the loop calls the parts, one after another; one normalises by batches."""

    def make(self) -> List[nn.Module]:
        first = nn.Sequential(nn.Linear(3, 4, bias=False), nn.BatchNorm1d(4), nn.Tanh())
        return [nn.Sequential(first, nn.Linear(4, 2))]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        model: Any = self.modules[0]
        return F.cross_entropy(model[1](model[0](x)), y)


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
    """A layer that keeps an average of its inputs, and counts its calls and the classes that it decides for."""

    average: torch.Tensor
    calls: torch.Tensor
    decided: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("decided", torch.zeros(2, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.calls += 1
        out: torch.Tensor = self.linear(x) * (1 + self.calls % 3)
        self.decided += F.one_hot(out.argmax(1), 2).sum(0).int()
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


class WeightNorm(World):
    """A layer whose weight a hook computes before each call."""

    def make(self) -> List[nn.Module]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))]


class SpectralNorm(World):
    """A layer whose weight a hook computes, which writes buffers."""

    def make(self) -> List[nn.Module]:
        return [nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))]


class Parametrized(World):
    def make(self) -> List[nn.Module]:
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))
        return [nn.Sequential(first, nn.Tanh(), nn.Linear(4, 2))]


class Pruned(World):
    def make(self) -> List[nn.Module]:
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        prune.l1_unstructured(model[0], "weight", 0.5)
        return [model]


class Spare(World):
    """A model of which the optimizer holds a part."""

    def make(self) -> List[nn.Module]:
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))]

    def groups(self) -> List[List[nn.Module]]:
        return [[self.modules[0][2]]]  # type: ignore[index]


class TwoHeads(World):
    """An encoder and two heads, each with its own optimizer; losses of the heads take turns."""

    def make(self) -> List[nn.Module]:
        self.turn = 0
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 2), nn.Linear(4, 2)]

    def groups(self) -> List[List[nn.Module]]:
        return [[module] for module in self.modules]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        return F.cross_entropy(self.modules[1 + self.turn % 2](self.modules[0](x)), y)


class Penalty(World):
    """A loss with a penalty on weights."""

    def make(self) -> List[nn.Module]:
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = super().loss(x, y)
        for parameter in self.modules[0].parameters():
            loss = loss + 0.01 * parameter.pow(2).sum()
        return loss


class _Remembering(nn.Module):
    """A model that keeps its latest output as an attribute."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.seen = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        self.seen = hidden.detach().mean(0)
        out: torch.Tensor = self.last(hidden)
        return out


class Attributes(World):
    def make(self) -> List[nn.Module]:
        return [_Remembering()]


class _Fixed(nn.Module):
    """A model that computes with attributes which are no weights, of the sorts of `write_constant`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        self.number, self.tensors, self.array = 1.0, [torch.ones(4)], np.ones(4, dtype="float32")
        self.tensor, self.shared = torch.zeros(4), torch.from_numpy(self.array)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x)) * self.number + self.tensor
        out: torch.Tensor = self.last(hidden * self.tensors[0] + self.shared)
        return out


class Constants(World):
    def make(self) -> List[nn.Module]:
        return [_Fixed()]


class Noisy(World):
    """Inputs that are augmented on the host, and noise of the shape of results."""

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = self.modules[0](x + 0.1 * torch.randn(x.shape))
        return F.cross_entropy(out + 0.1 * torch.randn(out.shape), y)

    def make(self) -> List[nn.Module]:
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))]


class Teacher(World):
    """A student that follows a frozen teacher with statistics of its own."""

    def make(self) -> List[nn.Module]:
        teacher = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).requires_grad_(False)
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), teacher]

    def groups(self) -> List[List[nn.Module]]:
        return [[self.modules[0]]]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.modules[1](x)
        return super().loss(x, y) + F.mse_loss(self.modules[0](x), target)


class Adversaries(World):
    """A generator and a critic: losses of the critic with a detached fake, and of the generator, take turns."""

    def make(self) -> List[nn.Module]:
        self.turn = 0
        return [nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))]

    def groups(self) -> List[List[nn.Module]]:
        return [[module] for module in self.modules]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        generator, critic = self.modules
        fake = generator(x)
        if self.turn % 2:
            return critic(fake.detach()).mean() - critic(x).mean()
        return F.softplus(-critic(fake)).mean()


WORLDS: Dict[str, Any] = {
    each.__name__: each
    for each in (
        *(
            Perceptron,
            BatchNorm,
            Parts,
            Tied,
            Lazy,
            Buffers,
            TwoModels,
            Criterion,
            WeightNorm,
            SpectralNorm,
            Parametrized,
        ),
        *(Pruned, Spare, TwoHeads, Penalty, Attributes, Constants, Noisy, Teacher, Adversaries),
    )
}
