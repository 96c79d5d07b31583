"""Gradient clipping in a loop becomes part of the device step; for other uses of gradients updates are on the host."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu import IPUConfig
from ignite_ipu.errors import RunError

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(3, 1)
x, y = torch.randn(8, 3), 10 * torch.randn(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(clip):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    norm = clip()
    optimizer.step()
    return norm
every = lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5)
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        return 0.1 * gradient
def Inside():
    model.forward = lambda x: Scaled.apply(nn.Linear.forward(model, x))
"""


def test_clipped_updates_equal_native_ones(run):
    ran = run(HEAD + "for _ in range(3): step(every)\nprint(*model.weight.flatten().tolist())")
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, y = torch.randn(8, 3), 10 * torch.randn(8, 1)
    for _ in range(3):
        model.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
    assert [float(text) for text in ran.output[0].split()] == pytest.approx(model.weight.flatten().tolist(), rel=1e-5)


SHOW = "print([round(each, 5) for p in model.parameters() for each in p.flatten().tolist()])"
ON_HOST = [
    ("step(lambda: nn.utils.clip_grad_norm_([model.weight], 1.0))", "leaves out 1 trained parameters (bias, ...)"),
    ("step(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=1))", "2-norm only"),
    ("step(lambda: [p.grad.mul_(0.5) for p in model.parameters()])", "A gradient is written into at"),
    ("step(lambda: model.weight.grad.data.clamp_(-1, 1))", "A gradient is written into at"),
    ("step(lambda: setattr(model.weight, 'grad', x[:1]))", "has a gradient that the host has computed or set"),
    ("optimizer.param_groups[0]['momentum'] = 0.9; step(every)", "with momentum=0.9 an IPU's SGD clips"),
]


@pytest.mark.parametrize(("body", "reason"), ON_HOST)
def test_other_uses_of_gradients_are_refused_on_the_device(run, body, reason):
    with pytest.raises(RunError) as refused:
        run(HEAD + body, config=IPUConfig(update="device"))
    assert reason in str(refused.value)


@pytest.mark.parametrize("body", [body for body, _ in ON_HOST])
def test_other_uses_of_gradients_train_with_updates_on_the_host(run, natively, body, caplog):
    """As in eager PyTorch, with one warning that names the line."""
    text = f"{HEAD}for _ in range(3): {body}\n{SHOW}"
    assert run(text).output == natively(text)
    (change,) = [each for each in caplog.messages if each.startswith("Weights are updated on the host from ")]
    assert f"script.py:{len(HEAD.splitlines()) + 1}" in change or "momentum" in body


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("model.register_full_backward_hook(lambda *_: None); step(every)", "module.register_full_backward_hook()"),
        ("Scaled.apply(model(x)).sum().backward()", "Scaled is an autograd.Function with a backward of its own"),
        ("Inside(); model(x).sum().backward(); optimizer.step()", "Scaled is an autograd.Function"),
    ],
)
def test_hooks_and_backward_passes_of_functions_are_refused(run, body, reason):
    with pytest.raises(RunError) as refused:
        run(HEAD + body)
    assert reason in str(refused.value)


_BACKWARD = "nn.functional.mse_loss(model(x), y).backward()"


@pytest.mark.parametrize("again", [_BACKWARD, ""])
def test_gradients_that_pytorch_would_use_again(run, natively, again):
    """In eager PyTorch, uncleared gradients are added to, and a second step uses them again."""
    text = f"{HEAD}step(lambda: None)\n{again}\noptimizer.step()\n{SHOW}"
    with pytest.raises(RunError, match="nothing has cleared them"):
        run(text, config=IPUConfig(update="device"))
    assert run(text).output == natively(text)


def test_gradients_that_were_added_to_and_are_then_cleared(run, natively):
    """No update uses them: a loop may clear late."""
    text = f"{HEAD}for _ in range(3):\n    step(lambda: None)\n    {_BACKWARD}\n    optimizer.zero_grad()\n{SHOW}"
    assert run(text, config=IPUConfig(update="device")).output == natively(text)


def test_gradients_of_parameters_that_nothing_trains_are_clipped_on_the_host(run, natively):
    """A frozen layer and a model that no optimizer has are among those that the loop clips, one by one."""
    text = (
        HEAD
        + """
model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.utils.parametrizations.spectral_norm(nn.Linear(3, 1)))
model[1].bias.requires_grad_(False)
others = nn.Linear(2, 2)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
each = lambda: [nn.utils.clip_grad_norm_([p], 0.1) for p in [*model.parameters(), *others.parameters()]]
for _ in range(2):
    step(each)
"""
        + SHOW
    )
    assert run(text).output == natively(text)


def test_gradients_may_be_cleared_by_hand(run):
    ran = run(
        HEAD
        + """
for _ in range(2):
    for p in model.parameters():
        p.grad = None
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print("done")
"""
    )
    assert ran.output == ["done"]
