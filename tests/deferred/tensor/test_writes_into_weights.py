"""Writes of values of the step into weights and buffers of captured models, as averages of features are kept.

PyTorch has them at once, whenever the loop writes them, and so has the next call.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.errors import CaptureError

GENERATOR = torch.Generator().manual_seed(3)
XS = torch.randn(5, 8, 4, generator=GENERATOR)
Write = Callable[[Any, torch.Tensor], Any]


class Prototypes(nn.Module):
    """A layer, one whose weights are written, and a buffer of rows, of which forward adds two."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(4, 3), nn.Linear(3, 3)
        self.register_buffer("rows", torch.randn(5, 3))

    def forward(self, x: torch.Tensor) -> Any:
        features = self.encode(x)
        return self.head(features) + self.rows[0] + self.rows[1], features


def replace_row(model: Any, value: torch.Tensor) -> None:
    model.rows[0] = value


def average(model: Any, value: torch.Tensor) -> None:
    model.rows.mul_(0.9).add_(value, alpha=0.1)


def interpolate(model: Any, value: torch.Tensor) -> None:
    model.rows.lerp_(value.expand(5, 3), 0.1)


def row_of_view(model: Any, value: torch.Tensor) -> None:
    model.rows[0].copy_(value)


def part_of_flat_view(model: Any, value: torch.Tensor) -> None:
    model.rows.view(-1)[:3].copy_(value)


def through_data(model: Any, value: torch.Tensor) -> None:
    model.rows.data[1] = value


def by_index(model: Any, value: torch.Tensor) -> None:
    model.rows.index_add_(0, torch.tensor([1]), value[None])


def by_out(model: Any, value: torch.Tensor) -> None:
    torch.mul(value.expand(5, 3), 0.5, out=model.rows)


def bias(model: Any, value: torch.Tensor) -> None:
    model.head.bias.copy_(value)


def bias_through_data(model: Any, value: torch.Tensor) -> None:
    model.head.bias.data.copy_(value)


def replace_bias(model: Any, value: torch.Tensor) -> None:
    model.head.bias.data = value


def of_the_update(model: Any, features: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return features


def of_a_part(model: Any, features: torch.Tensor, x: torch.Tensor) -> Any:
    return model.encode(x)


def of_another_call(model: Any, features: torch.Tensor, x: torch.Tensor) -> Any:
    return model(x)[1]


def states(update: str, when: str, write: Write, source: Callable[..., torch.Tensor]) -> List[Any]:
    """Return losses and final state of a loop that writes a value in every second iteration."""
    torch.manual_seed(0)
    model: Any = Prototypes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if update != "eager":
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    found: List[Any] = []

    def write_at(now: str, number: int, features: torch.Tensor, x: torch.Tensor) -> None:
        if now == when and number % 2:
            value = source(model, features, x).detach()[0]
            with torch.no_grad():
                write(model, value)

    for number, x in enumerate(XS):
        scores, features = model(x)
        loss = F.mse_loss(scores, x[:, :3])
        optimizer.zero_grad()
        write_at("before backward()", number, features, x)
        loss.backward()
        write_at("before the step", number, features, x)
        optimizer.step()
        write_at("after the step", number, features, x)
        found.append(loss.item())
    return [*found, {name: each.detach().clone() for name, each in model.state_dict().items()}]


BUFFERS = [replace_row, interpolate, row_of_view, part_of_flat_view, through_data, by_index, by_out]
WHEN = ["before backward()", "before the step", "after the step"]
SOURCES = [of_the_update, of_a_part, of_another_call]
WRITES = [*BUFFERS, bias, bias_through_data, replace_bias]
# Each write at each time, with values of each source in turns.
CASES = [
    (write, when, SOURCES[(first + second) % len(SOURCES)])
    for first, write in enumerate(WRITES)
    for second, when in enumerate(WHEN)
]


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize(("write", "when", "source"), CASES)
def test_the_next_call_has_what_was_written(write: Write, when: str, source: Any, update: str) -> None:
    torch.testing.assert_close(states(update, when, write, source), states("eager", when, write, source))


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("when", WHEN)
def test_a_moving_average_of_features(when: str, update: str) -> None:
    """Its first write does not read a value, and the second does."""
    found = states(update, when, average, of_the_update)
    torch.testing.assert_close(found, states("eager", when, average, of_the_update))


@pytest.mark.parametrize(("write", "when", "source"), [each for each in CASES if each[1] == "after the step"])
def test_the_device_has_what_was_written_after_the_step(write: Write, when: str, source: Any) -> None:
    torch.testing.assert_close(states("device", when, write, source), states("eager", when, write, source))


@pytest.mark.parametrize(("write", "when", "source"), [each for each in CASES if each[1] == "before the step"])
def test_the_device_refuses_or_has_what_was_written_before_the_step(write: Write, when: str, source: Any) -> None:
    seen = []
    try:
        seen = states("device", when, write, source)
    except CaptureError:
        return
    torch.testing.assert_close(seen, states("eager", when, write, source))


@pytest.mark.parametrize("update", ["device", "auto"])
def test_memory_that_was_handed_out_before_a_read_is_not_written_after_it(update: str) -> None:
    """The read has run the update, and PyTorch would write into the weights of before."""
    torch.manual_seed(0)
    model: Any = Prototypes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    for number, x in enumerate(XS):
        loss = F.mse_loss(model(x)[0], x[:, :3])
        loss.backward()
        if number == 2:
            memory = model.head.bias.data
            memory.fill_(loss.item())
            with pytest.raises(CaptureError, match="weights were written before that step, through memory of theirs"):
                optimizer.step()
            return
        loss.item()
        optimizer.step()
        optimizer.zero_grad()


def test_parameters_of_other_modules_are_written_at_once() -> None:
    seen: Dict[bool, List[float]] = {}
    for prepared in (False, True):
        torch.manual_seed(0)
        model, other = nn.Linear(4, 3), nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepared:
            ipu_prepare(model, optimizer, config=IPUConfig(update="auto"))
        found = seen[prepared] = []
        for x in XS:
            output = model(x)
            loss = output.square().mean()
            loss.backward()
            with torch.no_grad():
                other.bias.lerp_(output.mean(0), 0.5)
                found.append(other(torch.ones(3)).sum().item())
            optimizer.step()
            optimizer.zero_grad()
    assert seen[True] == pytest.approx(seen[False], rel=1e-4)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_several_tensors_are_written_at_once(update: str) -> None:
    """By functions of lists; those that `out` lists, and no model reads, are refused."""
    weights = []
    for prepared in (False, True):
        torch.manual_seed(0)
        model: Any = Prototypes()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if prepared:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        for x in XS:
            scores, features = model(x)
            F.mse_loss(scores, x[:, :3]).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                torch._foreach_mul_([model.rows, model.head.bias], features.detach().abs().mean())
        weights.append({name: each.detach().clone() for name, each in model.state_dict().items()})
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)
    with pytest.raises(CaptureError, match="writes values that do not exist yet"):
        torch.max(model(XS[0])[0].detach(), 1, out=(torch.empty(0), torch.empty(0, dtype=torch.int64)))
