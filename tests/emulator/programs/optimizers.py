"""Optimizers: new values reach the device through `setOptimizer`, constants do not change, state goes both ways."""

from __future__ import annotations

import copy
import warnings

import poptorch
import torch
from torch import nn


class Net(nn.Module):
    """Two layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x, target):
        out = self.two(torch.tanh(self.one(x)))
        return out, nn.functional.mse_loss(out, target)


torch.manual_seed(0)
start = Net()
x, target = torch.randn(8, 4), torch.randn(8, 2)


def fresh():
    return copy.deepcopy(start)


def plain_steps(kind, changes, **arguments):
    """Train in PyTorch, with these changes of hyper-parameters before the steps."""
    net = fresh()
    optimizer = kind(net.parameters(), **arguments)
    for change in changes:
        for group in optimizer.param_groups:
            group.update(change)
        optimizer.zero_grad()
        net(x, target)[1].backward()
        optimizer.step()
    return dict(net.state_dict())


def refused(call, what):
    try:
        call()
    except poptorch.Error as error:
        assert what in str(error), error
    else:
        raise AssertionError(f"{what}: was accepted")


# Values changed between calls, on each family of optimizers.
changes = [{}, {"lr": 0.3}, {"lr": 0.03}]
for ours, theirs, arguments in [
    (poptorch.optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (poptorch.optim.SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (poptorch.optim.Adam, torch.optim.Adam, {"lr": 0.1, "betas": (0.8, 0.99)}),
    (poptorch.optim.AdamW, torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.1}),
    (poptorch.optim.RMSprop, torch.optim.RMSprop, {"lr": 0.1, "alpha": 0.9, "centered": True}),
]:
    for scaling in (1.0, 128.0):
        net = fresh()
        optimizer = ours(net.parameters(), loss_scaling=scaling, **arguments)
        model = poptorch.trainingModel(net, optimizer=optimizer)
        for change in changes:
            optimizer.param_groups[0].update(change)
            model.setOptimizer(optimizer)
            out, loss = model(x, target)
        torch.testing.assert_close(dict(net.state_dict()), plain_steps(theirs, changes, **arguments))
        model.destroy()

# Without setOptimizer nothing changes; with a scheduler it is called after each step of that.
net = fresh()
optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1)
model = poptorch.trainingModel(net, optimizer=optimizer)
optimizer.param_groups[0]["lr"] = 100.0
model(x, target)
torch.testing.assert_close(dict(net.state_dict()), plain_steps(torch.optim.SGD, [{}], lr=0.1))

net = fresh()
optimizer = poptorch.optim.SGD(net.parameters(), lr=0.4)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
options = poptorch.Options().relaxOptimizerAttributesChecks(True)
model = poptorch.trainingModel(net, options, optimizer)
for _ in range(3):
    model(x, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch misses a call of optimizer.step()
        scheduler.step()
    model.setOptimizer(optimizer)
expected = plain_steps(torch.optim.SGD, [{"lr": 0.4}, {"lr": 0.2}, {"lr": 0.1}], lr=0.4)
torch.testing.assert_close(dict(net.state_dict()), expected)

# An argument that was not passed is a constant, one that was passed a variable, unless it is marked otherwise.
optimizer = poptorch.optim.SGD(fresh().parameters(), lr=0.1, momentum=0.0)
assert not optimizer.variable_attrs.isConstant("lr") and not optimizer.variable_attrs.isConstant("momentum")
assert optimizer.variable_attrs.isConstant("weight_decay")

for mark in (False, True):
    net = fresh()
    optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    if mark:
        optimizer.variable_attrs.markAsConstant("momentum")
        optimizer.variable_attrs.markAsVariable("weight_decay")
    model = poptorch.trainingModel(net, optimizer=optimizer)
    model(x, target)
    variable, constant = ("weight_decay", "momentum") if mark else ("momentum", "weight_decay")
    optimizer.param_groups[0][variable] = 0.25
    model.setOptimizer(optimizer)
    model(x, target)
    changed = plain_steps(torch.optim.SGD, [{}, {variable: 0.25}], lr=0.1, momentum=0.5)
    torch.testing.assert_close(dict(net.state_dict()), changed)
    before = optimizer.param_groups[0][constant]
    optimizer.param_groups[0][constant] = 0.75
    refused(lambda: model.setOptimizer(optimizer), "is not a valid replacement")  # noqa: B023
    optimizer.param_groups[0][constant] = before
    model.setOptimizer(optimizer)  # until it has accepted something else, it cannot read the state
    model.destroy()

# For PyTorch's own optimizers, arguments with their default values are constant; lr never is.
net = fresh()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.0)
model = poptorch.trainingModel(net, optimizer=optimizer)
model(x, target)
optimizer.param_groups[0]["lr"] = 0.02
model.setOptimizer(optimizer)
optimizer.param_groups[0]["momentum"] = 0.1
refused(lambda: model.setOptimizer(optimizer), "is not a valid replacement")
optimizer.param_groups[0]["momentum"] = 0.0
model.destroy()

# State is read from the device, and put back into another run.
straight, broken = fresh(), fresh()
for net, calls in [(straight, 4), (broken, 2)]:
    optimizer = poptorch.optim.Adam(net.parameters(), lr=0.05)
    model = poptorch.trainingModel(net, optimizer=optimizer)
    assert optimizer.state_dict()["ipu_state"] is None
    for _ in range(calls):
        model(x, target)
    checkpoint = {"model": copy.deepcopy(net.state_dict()), "optimizer": copy.deepcopy(optimizer.state_dict())}
    model.destroy()
assert any(name.startswith("Accl1___") for name in checkpoint["optimizer"]["ipu_state"])
resumed = Net()
resumed.load_state_dict(checkpoint["model"])
optimizer = poptorch.optim.Adam(resumed.parameters(), lr=0.05)
optimizer.load_state_dict(checkpoint["optimizer"])
model = poptorch.trainingModel(resumed, optimizer=optimizer)
for _ in range(2):
    model(x, target)
torch.testing.assert_close(dict(resumed.state_dict()), dict(straight.state_dict()))
torch_state = torch.optim.Adam(fresh().parameters()).state_dict()
try:
    poptorch.optim.Adam(fresh().parameters(), lr=0.1).load_state_dict(torch_state)
except RuntimeError as error:
    assert "Only IPU optimizer states" in str(error)
else:
    raise AssertionError("PyTorch's state was loaded")

# The combined variant of SGD scales its velocity; accumulators may be half; LAMB trusts each layer for itself.
half = {
    "accum_type": torch.half,
    "first_order_momentum_accum_type": torch.half,
    "second_order_momentum_accum_type": torch.float32,
}
for optimizer_of, exact, close in [
    (
        lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=64.0),
        plain_steps(torch.optim.SGD, [{}] * 3, lr=0.1, momentum=0.9),
        1e-5,
    ),
    (
        lambda p: poptorch.optim.AdamW(p, lr=0.1, loss_scaling=256.0, **half),
        plain_steps(torch.optim.AdamW, [{}] * 3, lr=0.1),
        2e-2,
    ),
]:
    net = fresh()
    model = poptorch.trainingModel(net, optimizer=optimizer_of(net.parameters()))
    for _ in range(3):
        model(x, target)
    torch.testing.assert_close(dict(net.state_dict()), exact, atol=close, rtol=close)

net = fresh()
model = poptorch.trainingModel(net, optimizer=poptorch.optim.LAMB(net.parameters(), lr=0.1, weight_decay=0.0))
model(x, target)
for (_, moved), (_, origin) in zip(net.named_parameters(), start.named_parameters()):
    # The first step of each tensor is lr of its own length long.
    torch.testing.assert_close((moved - origin).norm(), 0.1 * origin.norm())

# Automatic loss scaling starts from the given factor and changes no update that has no overflow.
net = fresh()
options = poptorch.Options()
options.Training.setAutomaticLossScaling(True)
model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.1, loss_scaling=1024.0))
model(x, target)
torch.testing.assert_close(dict(net.state_dict()), plain_steps(torch.optim.SGD, [{}], lr=0.1))
