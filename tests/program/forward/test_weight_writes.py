"""Forwards that would write into their weights."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUAccelerator, IPUConfig, SessionError, create_ipu_trainer

X = torch.randint(0, 6, (8, 3), generator=torch.Generator().manual_seed(0))


class Normalising(nn.Module):
    """An embedding of unit length, kept so by the forward."""

    def __init__(self, write: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.write = write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.write(self.table.weight)
        return self.table(x).sum(1)


def in_place(weight: torch.Tensor) -> None:
    weight.data[:-1, :].div_(weight.data[:-1, :].norm(dim=1, keepdim=True))


def copied(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.copy_(F.normalize(weight))


def out(weight: torch.Tensor) -> None:
    torch.mul(weight.detach(), 0.5, out=weight.detach())


@pytest.mark.parametrize("write", [in_place, copied, out])
def test_a_forward_that_writes_into_weights_is_refused(write: Callable[[torch.Tensor], Any]) -> None:
    """A device would train others than PyTorch, without a word; the weights stay as they are."""
    models = [Normalising(write), Normalising(write)]
    before = [model.table.weight.detach().clone() for model in models]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    captured, _ = IPUAccelerator(config=IPUConfig(update="device")).prepare(models[0], optimizers[0])
    with pytest.raises(SessionError, match=r"test_weight_writes\.py:\d+: .* writes into a weight.*\(table\.weight\)"):
        captured(X)
    trainer = create_ipu_trainer(models[1], optimizers[1], nn.CrossEntropyLoss())
    with pytest.raises(SessionError, match=r"writes into a weight.*\(table\.weight\)"):
        trainer.run([(X, torch.zeros(8, dtype=torch.long))])
    for model, weight in zip(models, before):
        assert torch.equal(model.table.weight, weight)


def test_a_forward_that_assigns_the_data_of_a_weight_is_refused() -> None:
    """It is no operator, and frees memory that another tensor may get; each door names the line."""

    def assign(weight: torch.Tensor) -> None:
        weight.data = weight.data * 0.5

    models = [Normalising(assign) for _ in range(3)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    captured, _ = IPUAccelerator(config=IPUConfig(update="device")).prepare(models[0], optimizers[0])
    evaluated, _ = IPUAccelerator(config=IPUConfig(update="device")).prepare(models[1], optimizers[1])
    trainer = create_ipu_trainer(models[2], optimizers[2], nn.CrossEntropyLoss())
    calls = (lambda: captured(X), lambda: evaluated.eval()(X), lambda: trainer.run([(X, X.new_zeros(8).long())]))
    for number, call in enumerate(calls):
        with torch.set_grad_enabled(number != 1):
            with pytest.raises(SessionError, match=r"test_weight_writes\.py:\d+: assign writes into a weight"):
                call()
