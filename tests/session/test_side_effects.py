"""Values that only the first call of a trainer's model sets, where a program cannot have them."""

from __future__ import annotations

import cProfile
import itertools
from typing import Any, Callable, Dict, Optional

import pytest
import torch
from ignite.engine import create_supervised_trainer
from torch import nn

from ignite_ipu import SessionError, create_ipu_trainer

BATCH = torch.randn(5, 4), torch.randn(5, 4)


class Centred(nn.Module):
    """Subtracts a mean, which it takes from its first batches in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.way, self.calls = nn.Linear(4, 4), way, 0
        self.register_buffer("mean", None if way == "registers" else torch.zeros(4))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x: torch.Tensor) -> Any:
        if self.way == "registers" and self.mean is None:
            self.mean = x.mean(0)
        if self.way == "counts" and self.calls < 2:
            self.calls += 1
            self.mean += x.mean(0) / 2
        if self.way == "sets" and not self.ready:
            self.mean.copy_(x.mean(0))
            self.ready.fill_(True)
        return self.layer(x - self.mean)


@pytest.mark.parametrize(
    ("way", "refusal"),
    [
        ("registers", "registers mean with values of its batch"),
        ("counts", "changes Python values in every call.*calls"),
    ],
)
def test_refused_before_anything_is_compiled(way: str, refusal: str) -> None:
    model = Centred(way)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    with pytest.raises(SessionError, match=refusal):
        trainer.run([BATCH])


def test_nothing_is_set_ahead_of_the_first_batch() -> None:
    """A program that is compiled ahead would begin with the values of another batch."""
    model = Centred("sets")
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    with pytest.raises(SessionError, match="sets mean, ready by its batch, so nothing can be compiled ahead"):
        trainer.compile(BATCH)
    assert not model.ready
    trainer.run([BATCH])
    torch.testing.assert_close(model.mean, BATCH[0].mean(0))


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> Any:
        return self.drop(self.layer(x))


def test_the_host_calls_a_model_once_before_the_trace_and_once_after_it() -> None:
    """The operators of both calls are compared; random numbers are as before."""
    model = Called()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    random = torch.get_rng_state()
    profile = cProfile.Profile()
    profile.runcall(trainer._process_function, trainer, BATCH)
    code = Called.forward.__code__
    assert [entry.callcount for entry in profile.getstats() if entry.code is code] == [3]
    assert torch.equal(torch.get_rng_state(), random)


def weighted(weights: Dict[str, Optional[float]]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a loss that has another weight in its first call, if there is one."""

    def loss(y_pred: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        weight, weights["first"] = weights["first"], None
        return nn.functional.mse_loss(y_pred, y) * (1.0 if weight is None else weight)

    return loss


@pytest.mark.parametrize("first", [2.0, 1.0])
def test_a_flag_of_the_first_call_may_not_change_the_loss(first: float) -> None:
    """It is in a dictionary that the loss function has."""
    losses = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1), weighted({"first": first}))
        if create is create_ipu_trainer and first != 1:
            with pytest.raises(SessionError, match=r"first call of Linear.* another result than a later .*\(weights\)"):
                trainer.run([BATCH] * 3)
        else:
            trainer.run([BATCH] * 3)
            losses.append(trainer.state.output)
    if first == 1:
        torch.testing.assert_close(*losses, check_dtype=False)


def test_an_iterator_that_goes_round_is_no_constant() -> None:
    """It is in the same place in every second call, and does not show it."""

    class Scaled(Called):
        def __init__(self) -> None:
            super().__init__()
            self.factors = itertools.cycle((1.0, 2.0))

        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x) * next(self.factors)

    model = Scaled()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    with pytest.raises(SessionError, match=r"changes Python values in every call.*itertools\.cycle"):
        trainer.run([BATCH])
