"""Optimizers that step on the host, over fifty updates of a captured loop: the same as in eager PyTorch."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ignite_ipu import IPUConfig, ipu_prepare

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))
Y = torch.arange(24) % 3
UPDATES = 50
OF_TORCH = sorted(
    name
    for name, value in vars(torch.optim).items()
    if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
)
SETTINGS = {"LBFGS": {"max_iter": 3}}
FUSED = {"SGD": {"lr": 0.05, "momentum": 0.9}, "Adam": {}, "AdamW": {}, "RMSprop": {}}


class Lion(torch.optim.Optimizer):
    """Moves by the sign of an average of gradients."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                parameter.data.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_((average * first + parameter.grad * (1 - first)).sign_(), alpha=-group["lr"])
                average.mul_(second).add_(parameter.grad, alpha=1 - second)
        return loss


class SAM(torch.optim.Optimizer):
    """Moves by the gradient at the worst point nearby, which takes a second backward pass."""

    def __init__(self, params, radius=0.05, **settings):
        super().__init__(params, {"radius": radius, **settings})
        self.base = torch.optim.SGD(self.param_groups, **settings)
        self.param_groups = self.base.param_groups

    def step(self, closure):
        loss = closure()
        parameters = [each for group in self.param_groups for each in group["params"]]
        before = [each.data.clone() for each in parameters]
        with torch.no_grad():
            norm = torch.stack([each.grad.norm() for each in parameters]).norm()
            for each in parameters:
                each.add_(each.grad * (self.param_groups[0]["radius"] / norm))
        with torch.enable_grad():
            closure()
        for each, values in zip(parameters, before):
            each.data = values
        self.base.step()
        return loss


class LARS(torch.optim.Optimizer):
    """Has a rate of its own for each layer, by the norms of its weights and gradients; gradients are centred first."""

    def __init__(self, params, lr=0.5):
        super().__init__(params, {"lr": lr})

    def step(self, closure):
        loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad -= parameter.grad.mean()
                rate = group["lr"] * parameter.detach().norm() / (parameter.grad.norm() + 1e-6)
                parameter.data = parameter.data - 0.01 * rate * parameter.grad
        return loss


class ByData(torch.optim.Optimizer):
    """Writes through `parameter.data` alone, which PyTorch does not count, and clears the gradients of its step."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad.data, alpha=-group["lr"])
                parameter.grad = None
        return loss


OWN = {"ByData": (ByData, {}), "Lion": (Lion, {}), "SAM": (SAM, {"lr": 0.05, "momentum": 0.9}), "LARS": (LARS, {})}


def trained(name, update=None):
    """Return the losses, weights and optimizer state of a loop; eager without an update."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))
    kind, settings = OWN[name] if name in OWN else (getattr(torch.optim, name), {**FUSED, **SETTINGS}.get(name, {}))
    optimizer = kind(model.parameters(), **settings)
    if update is not None:
        ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    losses = []
    for number in range(UPDATES):
        x, y = X[number % 3 * 8 :][:8], Y[number % 3 * 8 :][:8]

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if name == "SparseAdam":
                for parameter in model.parameters():
                    parameter.grad = parameter.grad.to_sparse()
            return loss

        if update == "device":
            losses.append(closure())
            optimizer.step()
        else:
            losses.append(optimizer.step(closure))
    return [loss.item() for loss in losses], dict(model.state_dict()), optimizer.state_dict()["state"]


@pytest.mark.parametrize("name", [*OF_TORCH, *OWN])
def test_an_optimizer_steps_as_natively(name):
    torch.testing.assert_close(trained(name, "host"), trained(name), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FUSED)
def test_both_kinds_of_update_end_alike(name):
    """A device adds up in another order, so that the last bits differ."""
    on_host, fused = trained(name, "host"), trained(name, "device")
    torch.testing.assert_close(fused[:2], on_host[:2], rtol=1e-3, atol=1e-4)
