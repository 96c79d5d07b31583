"""Attributes, modules and hooks count as they were at the call, whenever the loop sets them before the update."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError

Set = Callable[[Any, torch.Tensor, int], None]
X = torch.randn(6, 8, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0, 2, 1, 0])


class Stateful(nn.Module):
    """Adds a function of an earlier result, and scales the sum."""

    hidden: Optional[torch.Tensor] = None

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.back = nn.Linear(4, 3), nn.Linear(3, 3)
        self.hidden, self.scale, self.factors = None, 1.0, [torch.ones(3)]
        self.act: nn.Module = nn.Identity()
        self.hook: Any = None

    def forward(self, x: torch.Tensor) -> Any:
        out = self.layer(x)
        if self.hidden is not None:
            out = out + torch.tanh(self.back(self.hidden))
        return self.act(out) * self.scale * self.factors[0]


def keep(model: Any, scores: torch.Tensor, number: int) -> None:
    model.hidden = scores.detach()


def keep_from_the_third_on(model: Any, scores: torch.Tensor, number: int) -> None:
    model.hidden = scores.detach() if number > 2 else None


def keep_another(model: Any, scores: torch.Tensor, number: int) -> None:
    model.hidden = torch.full((8, 3), 0.1 * number)


def scale(model: Any, scores: torch.Tensor, number: int) -> None:
    model.scale = 1.0 + number


def replace_in_a_list(model: Any, scores: torch.Tensor, number: int) -> None:
    model.factors = [model.factors[0] * 0.9]


def replace_a_module(model: Any, scores: torch.Tensor, number: int) -> None:
    model.act = nn.Identity() if number % 2 else nn.Tanh()


def hook(model: Any, scores: torch.Tensor, number: int) -> None:
    if model.hook is None:
        model.hook = model.layer.register_forward_hook(lambda layer, args, output: output * 0.5)
    else:
        model.hook = model.hook.remove()


def seen(set_attribute: Set, when: str, update: Optional[str]) -> List[Any]:
    """Return the losses and weights of a loop that sets an attribute at a time; None as `update` is plain PyTorch."""
    model = Stateful()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if update is not None:
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    found: List[Any] = []
    for number, x in enumerate(X):
        optimizer.zero_grad()
        scores = model(x)
        if when != "after backward":
            set_attribute(model, scores, number)
        if when == "between two calls":
            scores = scores + model(x)
        loss = F.cross_entropy(scores, Y)
        loss.backward()  # type: ignore[no-untyped-call]
        if when == "after backward":
            set_attribute(model, scores, number)
        optimizer.step()
        found.append(loss.item())
    return [*found, *[each.tolist() for each in model.state_dict().values()]]


@pytest.mark.parametrize("update", ["device", "host"])
@pytest.mark.parametrize("when", ["after the forward", "between two calls", "after backward"])
@pytest.mark.parametrize(
    "change",
    [keep, keep_from_the_third_on, keep_another, scale, replace_in_a_list, replace_a_module, hook],
)
def test_a_model_that_changes_before_the_update(change: Set, when: str, update: str) -> None:
    """The update is of each call with the earlier object; the next call reads the new one, a value of the step too."""
    for ours, theirs in zip(seen(change, when, update), seen(change, when, None)):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs))


def test_a_tensor_that_is_written_before_the_update_is_refused() -> None:
    """Its earlier values are gone."""

    def write(model: Any, scores: torch.Tensor, number: int) -> None:
        model.factors[0].mul_(0.9)

    with pytest.raises(CaptureError, match=r"Python values that its code reads have changed \(factors\)"):
        seen(write, "after backward", "device")
