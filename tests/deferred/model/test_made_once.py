"""Each `step()` of a loop makes the update of eager PyTorch, once, with the weights and optimizer of the moment."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.errors import CaptureError
from ignite_ipu.torch_names.tensors import sharers_of

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(3))
Y = torch.tensor([0, 1, 2, 1, 0, 2])
Loop = Callable[[nn.Module, torch.optim.Optimizer, List[Any]], None]


def seen(loop: Loop, update: str) -> List[torch.Tensor]:
    """Return what a loop has seen until an error, and then the weights, in PyTorch and captured."""
    found = []
    for captured in (False, True):
        torch.manual_seed(0)
        model, values = nn.Linear(4, 3), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        if captured:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        loop(model, optimizer, values)
        found.append(torch.cat([torch.as_tensor(each).reshape(-1) for each in (*values, *model.state_dict().values())]))
    return found


@pytest.mark.parametrize("update", ["auto", "device"])
def test_a_memory_bank_that_the_loss_uses_is_written_before_the_step(update: str) -> None:
    """Row by row, with values of the step."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, values: List[Any]) -> None:
        bank = torch.full((6, 3), 0.1)
        for number in range(3):
            optimizer.zero_grad()
            scores = model(X)
            loss = F.cross_entropy(scores, Y) + (scores - bank).pow(2).mean()
            loss.backward()
            bank[number].copy_(scores.detach().mean(0))
            optimizer.step()
            values += [loss.item(), bank]

    eager, captured = seen(loop, update)
    torch.testing.assert_close(captured, eager)


@pytest.mark.skipif(sharers_of(X) is None, reason="this PyTorch does not count who shares memory")
@pytest.mark.parametrize("reads", [False, True])
def test_an_error_after_the_device_call_leads_to_no_second_step(reads: bool) -> None:
    """A value cannot be written into a tensor: it is computed after the update, from an operand that has changed.

    The update may run before its step, for a value that is read.
    """

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, values: List[Any]) -> None:
        factors, history = torch.ones(3), torch.zeros(2)
        for number in range(2):
            optimizer.zero_grad()
            scores = model(X)
            loss = F.cross_entropy(scores, Y)
            loss.backward()
            if number == 0:
                optimizer.step()
                values.append(loss.item())
        mean = (scores.detach() * factors).mean()
        history[0] = mean
        factors.add_(1)
        if type(mean) is torch.Tensor:
            optimizer.step()
            return
        with pytest.raises(CaptureError, match=r"The device has made the update at .*changed in place afterwards"):
            loss.item() if reads else optimizer.step()

    eager, captured = seen(loop, "auto")
    torch.testing.assert_close(captured, eager)


def _swaps(optimizer: Any) -> None:
    first, second = (group["params"] for group in optimizer.param_groups)
    first[0], second[0] = second[0], first[0]


def _is_of_another_class(optimizer: Any) -> None:
    class Halved(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)
            return super().step(closure)

    optimizer.__class__ = Halved


@pytest.mark.parametrize("change", [_swaps, _is_of_another_class])
def test_an_optimizer_is_changed_in_place(change: Callable[[Any], None]) -> None:
    """Two groups exchange parameters, or the optimizer gets a class with another step."""
    found = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        groups = [{"params": [model.weight], "lr": 0.3}, {"params": [model.bias], "lr": 0.02}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        if captured:
            ipu_prepare(model, optimizer, config=IPUConfig(update="auto"))
        losses = []
        for number in range(5):
            if number == 3:
                change(optimizer)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append((losses, model.state_dict()))
    torch.testing.assert_close(found[1], found[0])
