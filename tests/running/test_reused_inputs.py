"""Inputs that a loop writes into once its losses have gone backward: PyTorch has the gradients by then."""

from __future__ import annotations

import json

import pytest

from ignite_ipu.errors import RunError

SCRIPT = """
import json, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
x, y, buffer = torch.randn(8, 4, 6), torch.randint(3, (8, 4)), torch.empty(4, 6)
model, out = nn.Linear(6, 3), []
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for number in range(8):
    target = y[number].clone()
    buffer.copy_(x[number])
    loss = F.cross_entropy(model(buffer), target)
    loss.backward()
    {change}
    if {due}:
        optimizer.step()
        optimizer.zero_grad()
        out.append(loss.item())
print(json.dumps(out))
"""


@pytest.mark.parametrize("due", ["True", "number % 2"])
@pytest.mark.parametrize("change", ["target.zero_(); buffer.fill_(9)", "buffer.add_(1)", "pass"])
def test_losses_are_the_native_ones(run, monkeypatch, change, due):
    """A copy is updated from, also where the next micro-batch takes the buffer of the one before."""
    text = SCRIPT.format(change=change, due=due)
    found = json.loads(run(text).output[-1])
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == pytest.approx(json.loads(run(text).output[-1]), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ("number > 3 and buffer.add_(1)", r"at .*script\.py:11 or .*script\.py:14"),
        ("if number > 3: buffer[0].view(-1)[:2] += 1", r"at .*script\.py:11 or .*script\.py:14"),
        ("number > 3 and (lambda other: other.zero_())(target)", r"\(through another name, or in a function"),
    ],
)
def test_a_change_that_no_update_before_has_seen_is_refused(run, change, place):
    """With the lines of its use and of the write: nothing was copied, as the first update did no such thing."""
    with pytest.raises(
        RunError, match=rf"was used in the training step at .*script\.py:12 and changed in place afterwards {place}"
    ):
        run(SCRIPT.format(change=change, due="True"))
