"""Gradients of a device's update are gone when updates move to the host: they can be cleared, and no use is made."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.errors import CaptureError

BEFORE = 10  # updates, of which the first ones can be made again on the host
Loop = Dict[str, Any]


def steps(loop: Loop, count: int) -> None:
    """Clear, go backward and update."""
    for _ in range(count):
        loop["optimizer"].zero_grad()
        go_backward(loop)
        loop["optimizer"].step()


def go_backward(loop: Loop) -> None:
    F.mse_loss(loop["model"](loop["x"]), loop["y"]).backward()


def play(event: Callable[[Loop], None], update: Optional[Any]) -> List[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.05)
    if update is not None:
        optimizer = ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    loop = {"model": model, "optimizer": optimizer, "x": torch.randn(5, 3), "y": torch.randn(5, 2), "seen": []}
    steps(loop, BEFORE)
    event(loop)
    return [*loop["seen"], *[each.detach().clone() for each in model.parameters()]]


def look_at_inputs(loop: Loop) -> None:
    """Take the gradient of an input, which moves updates to the host."""
    probe = loop["x"].clone().requires_grad_()
    loop["seen"].append(torch.autograd.grad(loop["model"](probe).sum(), probe)[0])


def then_clear(loop: Loop) -> None:
    look_at_inputs(loop)
    steps(loop, 2)


def then_clear_to_zeros(loop: Loop) -> None:
    look_at_inputs(loop)
    loop["optimizer"].zero_grad(set_to_none=False)
    loop["seen"].append(loop["model"][0].weight.grad.clone())
    loop["optimizer"].step()
    steps(loop, 1)


def then_clear_the_module_to_zeros(loop: Loop) -> None:
    look_at_inputs(loop)
    loop["model"].zero_grad(set_to_none=False)
    go_backward(loop)
    loop["optimizer"].step()


def hold_them_while_they_are_cleared(loop: Loop) -> None:
    """Clearing to zeros moves updates to the host, as the loop still holds the gradients."""
    loop["held"] = [each.grad for each in loop["model"].parameters()]
    loop["optimizer"].zero_grad(set_to_none=False)
    go_backward(loop)
    loop["optimizer"].step()


def then_clear_one_by_one(loop: Loop) -> None:
    look_at_inputs(loop)
    for number, weight in enumerate(loop["model"].parameters()):
        assert weight.grad is not None and weight.grad.shape == weight.shape
        if number % 2:
            weight.grad = None
        else:
            weight.grad.detach_()
            weight.grad.data.zero_()
    go_backward(loop)
    loop["optimizer"].step()


def then_clear_after_backward(loop: Loop) -> None:
    """What is added to them is dropped, too."""
    look_at_inputs(loop)
    go_backward(loop)
    steps(loop, 2)


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize(
    "event",
    [
        then_clear,
        then_clear_to_zeros,
        then_clear_the_module_to_zeros,
        hold_them_while_they_are_cleared,
        then_clear_one_by_one,
        then_clear_after_backward,
    ],
)
def test_gradients_that_are_cleared_before_any_use(event: Callable[[Loop], None], update: str) -> None:
    for found, expected in zip(play(event, update), play(event, None)):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def step_again(loop: Loop) -> None:
    loop["optimizer"].step()


def step_after_a_look(loop: Loop) -> None:
    look_at_inputs(loop)
    loop["optimizer"].step()


def step_after_another_loss(loop: Loop) -> None:
    look_at_inputs(loop)
    go_backward(loop)
    loop["optimizer"].step()


def read(loop: Loop) -> None:
    look_at_inputs(loop)
    loop["model"][0].weight.grad.norm()


def write(loop: Loop) -> None:
    look_at_inputs(loop)
    loop["model"][0].weight.grad.mul_(2)


def clip(loop: Loop) -> None:
    look_at_inputs(loop)
    nn.utils.clip_grad_norm_(loop["model"].parameters(), 0.1)


@pytest.mark.parametrize("event", [step_again, step_after_a_look, step_after_another_loss, read, write, clip])
def test_a_use_is_refused_before_weights_change(event: Callable[[Loop], None]) -> None:
    weights: List[torch.Tensor] = []

    def watched(loop: Loop) -> None:
        weights.extend(each.detach().clone() for each in loop["model"].parameters())
        try:
            event(loop)
        finally:
            for before, now in zip(weights, loop["model"].parameters()):
                torch.testing.assert_close(now.detach(), before, rtol=0, atol=0)

    with pytest.raises(CaptureError, match=r"gone\..*test_lost_gradients\.py.*Only the first updates of a loop"):
        play(watched, "auto")
    assert weights


class Parts(nn.Module):
    """A model of three parts, the middle of which no optimizer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))
        return out


@pytest.mark.parametrize("updates", [1, 2, 10])
@pytest.mark.parametrize("clears", [False, True])
def test_gradients_of_no_optimizer_are_gone_with_the_updates_before(updates: int, clears: bool) -> None:
    """PyTorch adds them up over all updates."""
    model = Parts()
    first, last = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.first, model.last))
    for optimizer in (first, last):
        ipu_prepare(optimizer, model, config=IPUConfig(update="auto"))
    for _ in range(updates):
        first.zero_grad()
        last.zero_grad()
        model(torch.randn(4, 3)).pow(2).mean().backward()
        first.step()
        last.step()
    if clears:
        first.zero_grad()
        last.zero_grad()
    with pytest.raises(CaptureError, match=r"that is gone\..*no optimizer holds the parameter"):
        torch.linalg.vector_norm(model.middle.weight.grad)


def test_used_gradients_that_are_made_again_are_clipped_for_each_optimizer() -> None:
    """The third update adds to those of the second, so they are computed again on the host."""

    def trained(on_ipu: bool) -> List[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizers = [torch.optim.SGD(part.parameters(), lr=1.0) for part in (model[0], model[2])]
        for optimizer in optimizers if on_ipu else []:
            ipu_prepare(optimizer, model, config=IPUConfig(update="auto"))
        for number in range(3):
            for optimizer in optimizers if number < 2 else []:
                optimizer.zero_grad()
            model(torch.randn(4, 3)).pow(2).mean().backward()
            for part, norm in ((model[0], 0.001), (model[2], 0.002)) if number < 2 else []:
                ipu_clip_grad_norm_(part.parameters(), norm)
            for optimizer in optimizers:
                optimizer.step()
        return [each.detach().clone() for each in model.parameters()]

    for found, expected in zip(trained(True), trained(False)):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
