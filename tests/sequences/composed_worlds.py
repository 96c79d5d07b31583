"""Worlds of models whose forward no program can run: their code is the loop's, function by function."""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Deque, Dict, List, Optional

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.sequences.worlds import Teacher, TwoModels, World


class _Layers(nn.Module):
    """Two layers with a normalisation between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.first(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.hidden(x))
        return out


class _WithSchedule(_Layers):
    """A model that counts its calls in training, and scales its output by that."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
        return super().forward(x) * (1 + 0.1 * min(self.calls, 5))


class _Skipping(_Layers):
    """A model that leaves a layer out by a random number of Python's or of NumPy's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and random.random() < 0.5:
            return super().forward(x)
        scale = float(np.random.rand()) if self.training else 1.0
        out: torch.Tensor = self.last(torch.tanh(self.first(x))) * scale
        return out


class _Deciding(_Layers):
    """A model that decides by the values which it has computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        if hidden.mean() > 0:
            hidden = hidden * 0.5
        out: torch.Tensor = self.last(hidden) / max(float(self.last.weight.norm()), 0.1)
        return out


class _Routing(_Layers):
    """A model that computes some rows of a batch by another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        out = torch.zeros(len(x), 2)
        chosen = hidden[:, 0] > 0
        for mask, layer in ((chosen, self.last), (~chosen, self.other)):
            rows = mask.nonzero()[:, 0]
            if len(rows):
                out = out.index_add(0, rows, layer(hidden[rows]))
        return out


class _WritingWeights(_Layers):
    """A model that normalises rows of a weight before it computes with them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.first.weight.div_(self.first.weight.norm(dim=1, keepdim=True))
        return super().forward(x)


class _Queueing(_Layers):
    """A model with a queue of earlier outputs, a pointer into it, and a list of means."""

    queue: torch.Tensor
    pointer: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(8, 4))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))
        self.means: Deque[torch.Tensor] = deque(maxlen=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(x)
        out: torch.Tensor = self.last(hidden + 0.1 * self.queue.clone().mean(0))
        if self.training:
            with torch.no_grad():
                place = int(self.pointer)
                self.queue[place : place + len(x)] = hidden
                self.pointer[0] = (place + len(x)) % len(self.queue)
            self.means.append(hidden.detach().mean())
            out = out + 0.1 * sum(self.means)
        return out


class _Momentum(nn.Module):
    """A model with an average of its own encoder, which forward updates."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(3, 4), nn.Linear(3, 4).requires_grad_(False)
        self.last = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                for mine, theirs in zip(self.target.parameters(), self.online.parameters()):
                    mine.mul_(0.9).add_(theirs, alpha=0.1)
        out: torch.Tensor = self.last(torch.tanh(self.online(x) + self.target(x)))
        return out


class _Differentiating(_Layers):
    """A model that computes a derivative of its output by its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = super().forward(x).logsumexp(1).sum()
            (slope,) = torch.autograd.grad(energy, x)
        return super().forward(x + 0.1 * slope)


def _world(module: Any, document: str) -> Any:
    def make(self: World) -> List[nn.Module]:
        return [module()]

    return type(module.__name__[1:], (World,), {"make": make, "__doc__": document})


class Outside(World):
    """A head whose forward calls an encoder that it does not hold as a module."""

    def make(self) -> List[nn.Module]:
        encoder = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh())

        class Head(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoders = [encoder]
                self.last = nn.Linear(4, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                out: torch.Tensor = self.last(self.encoders[0](x))
                return out

        return [Head(), encoder]


class OutsideTwo(TwoModels):
    """The same, where encoder and head have an optimizer each."""

    def make(self) -> List[nn.Module]:
        return Outside.make(self)  # type: ignore[arg-type]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.modules[0](x), y)


class FollowingTeacher(Teacher):
    """A student whose forward has the targets of a teacher in a dictionary, and moves it."""

    def make(self) -> List[nn.Module]:
        _, teacher = super().make()
        held: Dict[str, nn.Module] = {"teacher": teacher}

        class Student(_Layers):
            def forward(self, x: torch.Tensor, target: Optional[torch.Tensor] = None) -> Any:
                with torch.no_grad():
                    target = held["teacher"](x)
                return super().forward(x) + 0.1 * target

        return [Student(), teacher]


class Stored(World):
    """A model that stores a result in the given batch."""

    def make(self) -> List[nn.Module]:
        class Storing(_Layers):
            def forward(self, batch: Dict[str, torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
                batch["hidden"] = self.hidden(batch["x"])
                out: torch.Tensor = self.last(batch["hidden"])
                return out

        return [Storing()]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        batch = {"x": x}
        out = self.modules[0](batch)
        return F.cross_entropy(out, y) + 0.1 * batch["hidden"].pow(2).mean()


COMPOSED: Dict[str, Any] = {
    each.__name__: each
    for each in (
        *(
            _world(module, str(module.__doc__))
            for module in (
                _WithSchedule,
                _Skipping,
                _Deciding,
                _Routing,
                _WritingWeights,
                _Queueing,
                _Momentum,
                _Differentiating,
            )
        ),
        *(Outside, OutsideTwo, FollowingTeacher, Stored),
    )
}
"""Worlds by their names."""
