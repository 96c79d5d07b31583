"""Lists that a model or a hook fills are reported unless each iteration clears them."""

from __future__ import annotations

import pytest

RULE = "growing-list"
PROGRAM = """
import torch
from torch import nn

seen = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        out = self.layer(x)
        {forward}
        return out


model = Net()
{hook}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        {each}
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
    {later}
{end}
"""
HOOK = "model.layer.register_forward_hook(lambda layer, given, out: seen.append(out.detach()))"


def program(forward="pass", hook="", each="pass", later="pass", end=""):
    return PROGRAM.format(forward=forward, hook=hook, each=each, later=later, end=end)


@pytest.mark.parametrize(
    "code",
    [
        program(hook=HOOK),
        program(hook=HOOK, later="seen.clear()"),
        program(forward="seen.append(out.detach().mean())"),
        program(forward="seen.extend(out.detach().unbind())"),
    ],
)
def test_lists_that_grow(lines, code):
    """`run` refuses them with this sentence (tests/deferred/test_left_behind.py)."""
    assert len(lines(RULE, code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        program(hook=HOOK, each="seen.clear()"),
        program(hook=HOOK, each="del seen[:]"),
        program(hook=HOOK.replace("seen.append(out.detach())", "kept.update(last=out)")),
        program(forward="seen.append(out.shape)"),
        program(forward="if len(seen) < 1: seen.append(out)"),
        program(forward="rows = []\n        rows.append(out)"),
        program(end=f"{HOOK}\nmodel(x)"),
        program(hook=f"handle = {HOOK}\nmodel(x)\nhandle.remove()"),
    ],
)
def test_other_lists(lines, code):
    """Those that are cleared, dictionaries, numbers, and hooks that may see one call."""
    assert lines(RULE, code) == []
