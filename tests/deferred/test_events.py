"""Questions of tools outside of captured loops, against the same loop in plain PyTorch."""

from __future__ import annotations

from typing import List, Optional

import torch
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.deferred.events import existing_gradients


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def found_in_a_loop(captured: bool) -> List[List[Optional[bool]]]:
    """Return which gradients exist after each line of two iterations."""
    model = Net()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    if captured:
        ipu_prepare(optimizer, model)
    found = []
    for _ in range(2):
        optimizer.zero_grad()
        found.append(existing_gradients(parameters))
        model(torch.ones(4, 3)).pow(2).mean().backward()
        found.append(existing_gradients(parameters))
        optimizer.step()
        found.append(existing_gradients(parameters))
    return found


def test_the_gradients_of_a_captured_loop_exist_where_those_of_pytorch_do():
    plain = found_in_a_loop(captured=False)
    assert found_in_a_loop(captured=True) == [[bool(each) for each in line] for line in plain]


def test_a_parameter_that_nothing_has_captured_has_gradients_of_the_host_alone():
    with_gradient, without = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    with_gradient.sum().backward()
    assert existing_gradients([with_gradient, without]) == [True, None]
