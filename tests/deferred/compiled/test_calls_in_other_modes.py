"""Calls of one update in other modes, or with other Python values, than each other and than at the update."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred.model.model import loops_of
from ignite_ipu.errors import CaptureError

Step = Callable[[Any, torch.Tensor, torch.Tensor], None]


class Net(nn.Module):
    """A network with statistics, dropout and a Python value, whose width can be chosen for each call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.width, self.options = 8, {"scale": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.first(x)))[:, : self.width] * self.options["scale"]
        return F.linear(hidden, self.last.weight[:, : self.width], self.last.bias)


def loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def in_both_modes(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    total = loss(model, x, y)
    total = total + loss(model.eval(), x + 0.1, y)
    model.train()
    total.backward()


def backward_in_each_mode(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    """The call in evaluation mode has the statistics after the first, and its gradient, too."""
    for number in range(4):
        loss(model.train(number % 2 == 0), x + number, y).backward()
    model.train()


def evaluated_first(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    loss(model.eval(), x + 0.1, y).backward()
    loss(model.train(), x, y).backward()


def a_part_in_evaluation_mode(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    total = loss(model, x, y)
    model.norm.eval()
    (total + loss(model, x + 0.1, y)).backward()
    model.norm.train()


def without_running_statistics(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    """As virtual adversarial training does for its second call."""
    total = loss(model, x, y)
    model.norm.track_running_stats = False
    total = total + loss(model, x + 0.1, y)
    model.norm.track_running_stats = True
    total.backward()


def slimmable(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    for model.width in (8, 4, 2):
        loss(model, x, y).backward()


def slimmable_in_one_loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    losses = []
    for model.width in (8, 4, 2):
        losses.append(loss(model, x, y))
    torch.stack(losses).sum().backward()


def changed_before_backward(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    model.width = 4
    total = loss(model, x, y)
    model.width = 8
    total.backward()


def an_entry_of_a_dictionary(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    total = loss(model, x, y)
    model.options["scale"] = 0.5
    total = total + loss(model, x, y)
    model.options["scale"] = 1.0
    total.backward()


STEPS: Dict[str, Step] = {
    function.__name__: function
    for function in (
        in_both_modes,
        backward_in_each_mode,
        evaluated_first,
        a_part_in_evaluation_mode,
        without_running_statistics,
        slimmable,
        slimmable_in_one_loss,
        changed_before_backward,
        an_entry_of_a_dictionary,
    )
}


def trained(step: Step, update: Optional[str]) -> Tuple[List[Any], Any]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if update is not None:
        ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    for _ in range(3):
        optimizer.zero_grad()
        step(model, torch.randn(6, 4), torch.randint(3, (6,)))
        optimizer.step()
    attributes = [model.training, model.norm.track_running_stats, model.width, model.options]
    return attributes, {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("update", ["device", "host"])
@pytest.mark.parametrize("name", STEPS)
def test_each_call_counts_as_it_was_made(name: str, update: str) -> None:
    """Weights, statistics and counters are PyTorch's; the attributes are as the loop left them."""
    expected, found = trained(STEPS[name], None), trained(STEPS[name], update)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
    assert found[0] == expected[0]


@pytest.mark.parametrize("update", ["device", "host"])
def test_statistics_that_a_later_call_updates_are_refused(update: str) -> None:
    """PyTorch's kernel takes the later ones for the gradient of the earlier call."""

    def step(model: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        total = loss(model.eval(), x, y)
        (total + loss(model.train(), x, y)).backward()

    with pytest.raises(CaptureError, match="compute the gradient of the first call with the later statistics"):
        trained(step, update)


def test_a_value_that_no_attribute_holds_is_refused() -> None:
    """Nothing can put it back for the first call."""

    class Settings:
        scale = 1.0

    class Scaled(Net):
        settings = Settings()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.settings.scale

    model = Scaled()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    total = model(torch.ones(2, 4)).sum()
    model.settings.scale = 2.0
    (total + model(torch.ones(2, 4)).sum()).backward()
    with pytest.raises(CaptureError, match=r"in between Python values .* have changed \(self.settings"):
        optimizer.step()


def test_a_compiled_program_serves_all_iterations() -> None:
    """The modes change within each iteration, and the program has calls in both."""
    model = Net()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for _ in range(4):
        optimizer.zero_grad()
        in_both_modes(model, torch.randn(6, 4), torch.randint(3, (6,)))
        optimizer.step()
    assert [loop.compilations for loop in loops_of(model.parameters())] == [1]
