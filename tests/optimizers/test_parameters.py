"""An optimizer and a model must agree on the trained parameters."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ignite_ipu.errors import OptimizerError
from ignite_ipu.optimizers.link import check_parameters


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def test_exactly_the_trainable_parameters_pass() -> None:
    """Frozen ones may be in the optimizer or not."""
    net = model()
    check_parameters(torch.optim.SGD(net.parameters(), lr=0.1), net)
    net[0].requires_grad_(False)
    check_parameters(torch.optim.SGD(net.parameters(), lr=0.1), net)
    check_parameters(torch.optim.SGD(net[1].parameters(), lr=0.1), net)


def test_missing_parameters_are_named() -> None:
    """The device would train them with default values; the message explains how to avoid that."""
    net = model()
    with pytest.raises(OptimizerError, match=r"in no group of the optimizer: 0\.weight, 0\.bias\. .*requires_grad_"):
        check_parameters(torch.optim.SGD(net[1].parameters(), lr=0.1), net)


def test_parameters_of_a_copy_are_foreign() -> None:
    """An optimizer made before the model was copied updates unused weights."""
    net = model()
    with pytest.raises(OptimizerError, match=r"not the model's: group 0, parameter 0 of shape \(3, 2\)"):
        check_parameters(torch.optim.SGD(net.parameters(), lr=0.1), copy.deepcopy(net))


def test_a_replaced_parameter_is_noticed() -> None:
    """Assigning a new Parameter leaves the optimizer with the old one."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net[1].weight = nn.Parameter(torch.zeros(1, 3))
    with pytest.raises(OptimizerError, match=r"group 0, parameter 2 of shape \(1, 3\)"):
        check_parameters(optimizer, net)


def test_tied_parameters_count_once() -> None:
    """Two names of one parameter are one parameter."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    check_parameters(torch.optim.SGD(net.parameters(), lr=0.1), net)


def test_long_lists_are_cut() -> None:
    """A big model's message stays readable."""
    net = nn.Sequential(*[nn.Linear(1, 1) for _ in range(10)])
    with pytest.raises(OptimizerError, match=r"0\.weight.* and 10 more"):
        check_parameters(torch.optim.SGD(net[9].parameters(), lr=0.1), net)
