"""TorchScript in a script compiles calls of PyTorch's factories, which have substitutes, and does so after the run."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")

FUNCTION = """
import torch
@torch.jit.script
def shifted(x, n: int):
    return x + torch.zeros(n, device=x.device) + torch.arange(n).float() + torch.tensor(1.0) + torch.ones_like(x)
print(shifted(torch.ones(3), 3))
"""
CLASS = """
import torch
class Pair:
    def __init__(self, x: torch.Tensor):
        self.x, self.y = x, torch.zeros(2)
def made():
    class Sum:
        def __init__(self, pair: Pair):
            self.pair = pair
        def total(self) -> torch.Tensor:
            return self.pair.x.sum() + self.pair.y.sum() + torch.full([1], 0.5)
    return torch.jit.script(Sum)
torch.jit.script(Pair)
made()
@torch.jit.script
def total(x: torch.Tensor) -> torch.Tensor:
    return torch.eye(2).sum() + Pair(x).y.sum() + x.sum()
print(total(torch.ones(2)))
"""
# The scripted model is a variable of the loss's code.
MODULE = """
import torch
torch.manual_seed(0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
    def forward(self, x):
        return self.layer(x) + torch.tensor(2.0)
scripted = torch.jit.script(Model())
print(type(scripted).__name__, sorted(scripted.state_dict()), scripted.layer.weight.sum().item())
"""
TRAINING = """
import torch
torch.manual_seed(0)
@torch.jit.script
def activation(x):
    return x * torch.sigmoid(x) + torch.ones(1)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
    def forward(self, x):
        return activation(self.layer(x))
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = activation(model(torch.ones(2, 3))).square().mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.5f}")
"""


@pytest.mark.parametrize(
    "text", [FUNCTION, CLASS, TRAINING, MODULE + TRAINING], ids=["function", "class", "training", "module"]
)
def test_scripted_code_computes_as_natively(run, natively, text):
    assert run(text).output == natively(text)


def test_functions_are_compiled_as_before_after_the_run(run):
    run(FUNCTION)

    def zeros(n: int) -> torch.Tensor:
        return torch.zeros(n)

    assert torch.jit.script(zeros)(2).tolist() == [0, 0]
