"""Constant tensors in attributes of modules that forward converts, makes longer or makes anew, as PyTorch does."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer, ipu_prepare

Convert = Callable[["Positions", torch.Tensor], torch.Tensor]


def sinusoids(rows: int) -> torch.Tensor:
    return torch.outer(torch.arange(float(rows)), torch.tensor([1.0, 0.5, 0.25, 0.125])).sin()


def grown(net: Positions, x: torch.Tensor) -> torch.Tensor:
    return net.table if net.table.size(0) >= x.size(1) else sinusoids(x.size(1))


CONVERSIONS: Dict[str, Convert] = {
    "to another": lambda net, x: net.table.to(net.flag),
    "to the input": lambda net, x: net.table.to(x),
    "to a device": lambda net, x: net.table.to(x.device),
    "to a device and a type": lambda net, x: net.table.to(device=x.device, dtype=torch.float32),
    "type_as": lambda net, x: net.table.type_as(x),
    "contiguous": lambda net, x: net.table.to(x.device).float().contiguous(),
    "expand_as": lambda net, x: net.table.to(x.device).expand_as(net.table),
    "grown": grown,
    "grown and moved": lambda net, x: grown(net, x).to(net.flag),
    "made anew": lambda net, x: sinusoids(8).to(x.device),
}


class Positions(nn.Module):
    """Adds a table of positions, as translation models have it, beside the weights."""

    def __init__(self, convert: Convert, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.convert = nn.Linear(4, 3), convert
        self.table = sinusoids(4).to(dtype)
        self.register_buffer("flag", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = self.convert(self, x)
        return self.layer(x + self.table[: x.size(1)]).mean(1)


def batches(*lengths: int) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, n, 4, generator=generator), torch.randint(0, 3, (6,), generator=generator)) for n in lengths
    ]


def trained(net: Positions, update: Optional[str], lengths: Tuple[int, ...]) -> List[Any]:
    """Train for two epochs with an evaluation after each; return losses, results, and the table."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    if update is not None:
        optimizer = ipu_prepare(optimizer, net, config={"update": update})
    found: List[Any] = []
    for _ in range(2):
        net.train()
        for x, y in batches(*lengths):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        net.eval()
        with torch.no_grad():
            found += [net(batches(lengths[-1])[0][0]).tolist(), net.table.tolist(), str(net.table.dtype)]
    return found


def assert_same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        if isinstance(other, str):
            assert one == other
        else:
            torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_loop_trains_and_evaluates_with_a_converted_table(name: str) -> None:
    """Programs for training and for evaluation read the table that eager PyTorch has."""
    convert, lengths = CONVERSIONS[name], (4, 4, 6) if "grown" in name else (4, 4)
    assert_same(trained(Positions(convert), "auto", lengths), trained(Positions(convert), None, lengths))


@pytest.mark.parametrize("update", ["device", "host"])
@pytest.mark.parametrize("name", ["to the input", "grown and moved"])
def test_wherever_updates_run(name: str, update: str) -> None:
    convert, lengths = CONVERSIONS[name], (4, 6) if "grown" in name else (4, 4)
    assert_same(trained(Positions(convert), update, lengths), trained(Positions(convert), None, lengths))


@pytest.mark.parametrize("update", ["auto", "host"])
def test_a_conversion_changes_the_type_of_the_attribute_as_in_pytorch(update: str) -> None:
    """A table in float64, as NumPy makes it, is one in float32 after the first call."""

    def net() -> Positions:
        return Positions(CONVERSIONS["to the input"], torch.float64)

    assert_same(trained(net(), update, (4, 4)), trained(net(), None, (4, 4)))


def test_the_engines_of_ignite_share_the_table() -> None:
    """The evaluator's program is traced after the trainer's, with the table that this has left."""
    convert = CONVERSIONS["grown and moved"]
    net, plain = Positions(convert), Positions(convert)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trainer = create_ipu_trainer(net, optimizer, nn.CrossEntropyLoss())
    trainer.run(batches(6, 6))
    results: List[Any] = []
    evaluator = create_ipu_evaluator(net)
    results.append(evaluator.run(batches(6)).output[0].tolist())
    native = torch.optim.SGD(plain.parameters(), lr=0.1)
    for x, y in batches(6, 6):
        native.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        native.step()
    assert_same([*results, net.table.tolist()], [plain(batches(6)[0][0]).tolist(), plain.table.tolist()])


def test_a_table_that_the_loop_replaces_is_read_anew() -> None:
    """The program of the former table is none for the new one."""

    def run(captures: bool) -> List[Any]:
        net = Positions(CONVERSIONS["to the input"])
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if captures:
            optimizer = ipu_prepare(optimizer, net)
        found: List[Any] = []
        for number, (x, y) in enumerate(batches(4, 4, 4)):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            found += [loss.item(), net.table.tolist()]
            if number == 1:
                net.table = torch.full((4, 4), 3.0, dtype=torch.float64)
        return found

    assert_same(run(True), run(False))
