"""Views of weights that a loop keeps over updates have the weights' current values, as in eager PyTorch."""

from __future__ import annotations

import copy
from typing import Any, Callable, List

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.deferred import CaptureError

X = torch.linspace(-1, 1, 12).view(4, 3)
Y = torch.tensor([0, 1, 1, 0])
Update = Callable[..., None]
Program = Callable[[nn.Linear, Update], List[Any]]


def _eager_and_captured(program: Program) -> List[Any]:
    """Return what a program sees of a layer and of its updates, eagerly and captured."""
    torch.manual_seed(0)
    eager = nn.Linear(3, 2)
    seen: List[Any] = []
    for layer in (eager, copy.deepcopy(eager)):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        if layer is not eager:
            ipu_prepare(optimizer, layer)

        def update(
            penalty: Callable[[], Any] = lambda: 0.0, layer: nn.Linear = layer, optimizer: Any = optimizer
        ) -> None:
            optimizer.zero_grad()
            (F.cross_entropy(layer(X), Y) + penalty()).backward()
            optimizer.step()

        found = program(layer, update)
        seen.append(torch.cat([torch.as_tensor(each).detach().reshape(-1) for each in [*found, layer.weight]]))
    return seen


def _kept(layer: nn.Linear, update: Update) -> List[Any]:
    views = [layer.weight[0], layer.weight.t(), layer.weight.T, layer.weight.view(-1)[2:5], *layer.weight.split(1)]
    views += [*layer.weight, layer.weight.expand_as(torch.ones(2, 3)), layer.weight[0].detach(), layer.bias[:1].data]
    views.append(torch.broadcast_tensors(torch.ones(1, 3), layer.weight)[1])
    seen: List[Any] = []
    for _ in range(2):
        update()
        seen += [each.tolist() for each in views]
    return seen


def _in_losses(layer: nn.Linear, update: Update) -> List[Any]:
    row, seen = layer.weight[0], []
    for _ in range(3):
        update(lambda: row.pow(2).sum())
        seen.append(row.tolist())
    return seen


def _functions_of_them_keep_their_values(layer: nn.Linear, update: Update) -> List[Any]:
    row = layer.weight[0]
    update()
    double, copied = row * 2, row.detach().clone()
    update()
    return [double, copied, row]


def _written(layer: nn.Linear, update: Update) -> List[Any]:
    row, part, seen = layer.weight[0], layer.weight[1].detach(), []
    for _ in range(2):
        update()
        with torch.no_grad():
            row.mul_(0.5)
            row[0] = 3
            torch.add(row, layer.weight[1], out=row)
        part += 1
        nn.init.constant_(layer.weight[1, :1], 0.25)
        seen += [layer.weight.tolist(), row.tolist(), part.tolist()]
    return seen


def _of_written_weights(layer: nn.Linear, update: Update) -> List[Any]:
    row, seen = layer.weight[0], []
    update()
    with torch.no_grad():
        layer.weight.mul_(0.5)
    seen.append(row.tolist())
    layer.weight.data.add_(1)
    seen.append(row.tolist())
    layer.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.ones(2)})
    seen.append(row.tolist())
    update()
    return [*seen, row.tolist()]


@pytest.mark.parametrize(
    "program", [_kept, _in_losses, _functions_of_them_keep_their_values, _written, _of_written_weights]
)
def test_views_are_those_of_eager_pytorch(program: Program) -> None:
    """They change with the weights, gradients flow through them, and writes into them change the weights."""
    eager, captured = _eager_and_captured(program)
    torch.testing.assert_close(captured, eager)


def test_writes_with_gradients_are_refused_by_pytorch() -> None:
    """The error is eager PyTorch's."""

    def write(layer: nn.Linear, update: Update) -> List[Any]:
        with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
            layer.weight[0].mul_(0.5)
        return []

    _eager_and_captured(write)


def test_a_view_of_memory_that_the_weight_had_before_is_refused() -> None:
    """PyTorch's view would keep the previous memory."""
    layer = nn.Linear(3, 2)
    ipu_prepare(torch.optim.SGD(layer.parameters(), lr=0.5), layer)
    row = layer.weight[0]
    layer.weight.data = torch.ones(2, 3)
    with pytest.raises(CaptureError, match="has got other memory since"):
        row.tolist()
    assert layer.weight[0].tolist() == [1, 1, 1]
