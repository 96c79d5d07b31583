"""Writes of the loop into weights and buffers between the forward and `backward()`, compared with PyTorch.

A call counts as computed with the buffers that its forward reads, and with no others of its model.
"""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError

Write = Callable[[Any, torch.Tensor], Any]
Term = Callable[[Any, torch.Tensor], torch.Tensor]
X = torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0, 2])


class Centred(nn.Module):
    """Has a centre of its results, which its forward does not read unless it `scales`."""

    centre: torch.Tensor

    def __init__(self, scales: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.scales = nn.Linear(4, 3), scales
        self.register_buffer("centre", torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x) * self.centre if self.scales else self.layer(x)


def distance(model: Any, scores: torch.Tensor) -> torch.Tensor:
    return ((scores - model.centre) ** 2).mean()


def product(model: Any, scores: torch.Tensor) -> torch.Tensor:
    """Autograd saves the centre for the gradient of the bias."""
    return (model.centre * model.layer.bias).sum()


def difference(model: Any, scores: torch.Tensor) -> torch.Tensor:
    return (model.centre - model.layer.bias).sum()


def nothing(model: Any, scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros(())


def add(model: Any, scores: torch.Tensor) -> None:
    model.centre.add_(0.1)


def add_to_data(model: Any, scores: torch.Tensor) -> None:
    model.centre.data.add_(0.1)


def add_to_bias(model: Any, scores: torch.Tensor) -> None:
    model.layer.bias.add_(0.1)


def copy_mean(model: Any, scores: torch.Tensor) -> None:
    model.centre.copy_(scores.detach().mean(0))


def average(model: Any, scores: torch.Tensor) -> None:
    model.centre.mul_(0.9)
    model.centre.add_(scores.detach().mean(0), alpha=0.1)


def average_of_part(model: Any, scores: torch.Tensor) -> None:
    model.centre.mul_(0.9)
    model.centre.add_(model.layer(torch.ones(6, 4)).detach()[0], alpha=0.1)


def assert_same(write: Write, when: str, term: Term, update: str, scales: bool = False) -> None:
    """Play a loop that writes at a time, in PyTorch and captured, and compare the numbers."""
    seen = []
    for captures in (False, True):
        model = Centred(scales)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        if captures:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        found: List[Any] = []

        def at(moment: str, scores: torch.Tensor, model: Any = model) -> None:
            if moment == when:
                with torch.no_grad():
                    write(model, scores)

        for x in X:
            optimizer.zero_grad()
            scores = model(x)
            at("after the forward", scores)
            loss = F.cross_entropy(scores, Y) + term(model, scores)
            at("after the loss", scores)
            loss.backward()  # type: ignore[no-untyped-call]
            at("after backward", scores)
            optimizer.step()
            found += [loss.item(), model.centre.tolist()]
        seen.append([*found, *[each.tolist() for each in model.state_dict().values()]])
    eager, captured = seen
    for mine, theirs in zip(captured, eager):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("when", ["after the forward", "after the loss", "after backward"])
@pytest.mark.parametrize("write", [add, add_to_data, add_to_bias, copy_mean, average, average_of_part])
@pytest.mark.parametrize("term", [distance, difference])
def test_a_loss_has_the_values_of_its_time(term: Term, write: Write, when: str, update: str) -> None:
    assert_same(write, when, term, update)


@pytest.mark.parametrize("when", ["after the forward", "after the loss"])
def test_a_device_makes_an_update_whose_calls_read_no_written_buffer(when: str) -> None:
    """The function of the loss has the value before as an input of the program."""
    assert_same(add, when, distance, "device")


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("when", ["after the forward", "after the loss"])
@pytest.mark.parametrize(("term", "scales"), [(product, False), (nothing, True)])
def test_gradients_depend_on_a_later_value_that_pytorch_does_not_count(
    term: Term, scales: bool, when: str, update: str
) -> None:
    """Autograd has saved the memory of the buffer, into which the loop writes by `data`."""
    assert_same(add_to_data, when, term, update, scales)


def test_gradients_are_used_after_another_optimizer_has_stepped() -> None:
    """The message has the line that uses them, and that of `backward()`; the first updates would be made again."""
    torch.manual_seed(0)
    first, second = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 3)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    ipu_prepare(first, second, *optimizers, config=IPUConfig(update="auto"))
    for number in range(12):
        loss = F.cross_entropy(second(first(X[number % 4])), Y)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers[: 1 if number == 11 else 2]:
            optimizer.step()
        loss.item()
    with pytest.raises(CaptureError, match=r"Gradients are used at .*, and the loss that went backward for them at"):
        [each.grad.sum() for each in (*first.parameters(), *second.parameters())]  # type: ignore[union-attr]
