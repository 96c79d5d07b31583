"""Tensors of the host and results that a loop writes into have PyTorch's values under all of their names."""

from __future__ import annotations

import copy
from typing import Any, Callable, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.deferred import CaptureError
from tests.deferred.tensor.test_views import of_the_host

X = torch.linspace(-1, 1, 12).view(4, 3)
Y = torch.tensor([0, 1, 1, 0])
Program = Callable[[torch.Tensor, Callable[[], None], List[Any]], None]


def _seen(program: Program, times: int = 2) -> List[torch.Tensor]:
    """Return what a program sees in updates, eagerly and captured; it gets the scores and the rest of an update."""
    torch.manual_seed(0)
    eager = nn.Linear(3, 2)
    found = []
    for layer in (eager, copy.deepcopy(eager)):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        if layer is not eager:
            ipu_prepare(optimizer, layer)
        seen: List[Any] = []
        for _ in range(times):
            optimizer.zero_grad()
            scores = layer(X)
            F.cross_entropy(scores, Y).backward()
            program(scores.detach(), optimizer.step, seen)
        found.append(torch.cat([torch.as_tensor(each).reshape(-1) for each in seen]))
    return found


def _after_the_step(scores: torch.Tensor, step: Callable[[], None], seen: List[Any]) -> None:
    total = other = torch.zeros(())
    total += scores.mean()
    double = total * 2
    step()
    total.add_(1)
    seen += [total.item(), other.item()]
    other.mul_(3)
    seen += [total.item(), other.item(), double.item()]


def _views_before_the_step(scores: torch.Tensor, step: Callable[[], None], seen: List[Any]) -> None:
    whole = torch.zeros(4)
    row, others = whole[:2], whole[1:3]
    row += scores.mean()
    seen += [others.tolist(), whole.tolist()]
    step()
    row += 1
    whole *= 2
    seen += [row.tolist(), others.tolist(), whole.tolist()]


def _arrays(scores: torch.Tensor, step: Callable[[], None], seen: List[Any]) -> None:
    whole = torch.zeros(4)
    array = whole.numpy()
    whole[0] += scores.mean()
    whole[2:] = scores[0]
    seen.append(array.copy())
    foreign = torch.from_numpy(array)
    foreign += scores.mean()
    seen.append(array.copy())
    step()
    seen += [array.copy(), whole.tolist()]


def _results(scores: torch.Tensor, step: Callable[[], None], seen: List[Any]) -> None:
    row, double = scores[0], scores * 2
    step()
    scores.mul_(10)
    scores[1] = 7
    seen += [scores.tolist(), row.tolist(), double.tolist()]
    seen[-3:] = map(copy.copy, seen[-3:])
    scores.numpy()[:] = 0
    seen += [row.tolist(), double.tolist()]


@of_the_host
@pytest.mark.parametrize("program", [_after_the_step, _views_before_the_step, _arrays, _results])
def test_values_are_those_of_eager_pytorch(program: Program) -> None:
    """Before the step and after it."""
    eager, captured = _seen(program)
    torch.testing.assert_close(captured, eager)


def test_a_value_that_is_computed_late_is_refused_if_its_operand_was_written_through_a_view() -> None:
    """Of such a write nothing is known in time, but PyTorch counts it."""

    def program(scores: torch.Tensor, step: Callable[[], None], seen: List[Any]) -> None:
        view, double = scores.detach(), scores * 2
        step()
        view.zero_()
        if type(double) is not torch.Tensor:
            with pytest.raises(CaptureError, match=r"was recorded before its operand of shape \(4, 2\) was known"):
                double.tolist()
        seen.append(view)

    _seen(program, times=1)
