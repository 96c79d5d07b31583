"""Two tensors of a model with memory in common, of which calls or updates change one, are refused in every program."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

from ignite_ipu import IPUConfig, create_ipu_evaluator, create_ipu_trainer, ipu_prepare
from ignite_ipu.errors import SessionError

BATCHES = [
    (torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)), torch.ones(4, 3) * seed) for seed in range(4)
]


class Parts(nn.Module):
    """Has a table, a view of a part of it, and another part of the same memory; forward adds to what `writes` names."""

    def __init__(self, writes: str = "", view: str = "buffer", seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer, self.writes = nn.Linear(3, 3), writes
        memory = torch.ones(4, 2)
        self.register_buffer("table", memory[:, 0])
        self.register_buffer("other", memory[:, 1])
        if view == "attribute":
            self.view = self.table[1:2]
        else:
            self.register_buffer("view", self.table[1:2])

    def forward(self, x: torch.Tensor) -> Any:
        if self.writes:
            getattr(self, self.writes).add_(x.detach().mean())
        return self.layer(x) * (self.table.sum() + 2 * self.view + 3 * self.other.sum())


def by_loop(model: nn.Module, update: Any = None) -> List[float]:
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.001)
    if update is not None:
        optimizer = ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    losses = []
    for x, y in BATCHES:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_trainer(model: nn.Module, update: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    create_ipu_trainer(model, optimizer, nn.MSELoss(), config=IPUConfig(update=update)).run(BATCHES)


def by_evaluator(model: nn.Module, update: Any) -> None:
    create_ipu_evaluator(model, {}).run(BATCHES)


@pytest.mark.parametrize(
    ("run", "update"),
    [
        *((by_loop, update) for update in ("device", "auto", "host")),
        (by_trainer, "device"),
        (by_trainer, "host"),
        (by_evaluator, "device"),
    ],
)
@pytest.mark.parametrize(
    ("writes", "view", "names"),
    [
        ("table", "buffer", "table and view"),
        ("view", "buffer", "view and table"),
        ("table", "attribute", "table and view"),
    ],
)
def test_a_write_into_one_of_two_is_refused(
    run: Callable[..., Any], update: Any, writes: str, view: str, names: str
) -> None:
    """Both have the new values in PyTorch. A device has two copies."""
    with pytest.raises(SessionError, match=rf"Parts\.forward uses two tensors .*\({names}\).*clone"):
        run(Parts(writes, view), update)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("writes", ["", "other"])
def test_unchanged_tensors_and_columns_of_one_table_are_as_in_pytorch(update: Any, writes: str) -> None:
    assert by_loop(Parts(writes), update) == pytest.approx(by_loop(Parts(writes)), rel=1e-4)


class Remembered(nn.Module):
    """Has an attribute in the memory of a weight, which forward reads or not."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.reads = nn.Linear(3, 3), reads
        self.kept = [self.layer.weight.data[0]]

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) + (self.kept[0] if self.reads else 0.0)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_an_attribute_in_the_memory_of_a_weight_may_not_be_read_in_forward(update: Any) -> None:
    with pytest.raises(SessionError, match=r"layer\.weight and kept\[0\]"):
        by_loop(Remembered(reads=True), update)
    assert by_loop(Remembered(reads=False), update) == pytest.approx(by_loop(Remembered(reads=False)), rel=1e-4)


def test_attributes_that_each_call_replaces_are_allowed() -> None:
    """The weight of `spectral_norm` is that of the parameter until the first call."""
    for normalise in (spectral_norm, getattr(parametrizations, "weight_norm", nn.utils.weight_norm)):
        found = []
        for update in (None, "device"):
            torch.manual_seed(0)
            found.append(by_loop(nn.Sequential(normalise(nn.Linear(3, 3))), update))
        assert found[0] == pytest.approx(found[1], rel=1e-4)
