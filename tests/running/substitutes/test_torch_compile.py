"""`torch.compile` in a script: the compiler is left out, and models keep their wrappers and the names these give."""

from __future__ import annotations

import pytest
import torch

# The compiler hides it where warnings are shown; here they are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf Tensor")

HEAD = """
import copy
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
x, y = torch.randn(8, 3), torch.randn(8, 1)
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.6f}")
model.load_state_dict({name: tensor / 2 for name, tensor in model.state_dict().items()})
for each in (model, copy.deepcopy(model)):
    each.eval()
    with torch.no_grad():
        print(f"{each(x).sum().item():.5f}", sorted(each.state_dict()))
"""


@pytest.mark.parametrize(
    "compiled",
    [
        "torch.compile(model, backend='eager')",
        "torch.compile(backend='eager')(model)",
        "nn.DataParallel(torch.compile(model, backend='eager'))",
        "nn.Sequential(torch.compile(model[:2], backend='eager'), model[2])",
    ],
)
def test_a_compiled_model_keeps_its_names(run, natively, compiled):
    """Printed, saved and loaded models have the names that PyTorch gives; so has a copy."""
    text = f"{HEAD}\nmodel = {compiled}\n{LOOP}"
    assert run(text).output == natively(text)


@pytest.mark.skipif(not hasattr(torch.nn.Module, "compile"), reason="PyTorch 2.1 has no Module.compile")
def test_a_model_that_is_compiled_in_place_trains(run, natively):
    text = f"{HEAD}\nmodel.compile(backend='eager')\n{LOOP}"
    ran = run(text)
    assert ran.output == natively(text)
    assert "left out" in ran.became("module.compile()")


def test_the_wrapper_is_pytorchs_and_shows_the_model_within(run, natively):
    """Libraries find out by its class whether a model is compiled."""
    text = (
        HEAD
        + """
compiled = torch.compile(model)
print(isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule), compiled._orig_mod is model)
print(compiled.training, model.eval().training, compiled.training, len(compiled._orig_mod))
"""
    )
    ran = run(text)
    assert ran.output == natively(text)
    assert ran.output[0] == "True True"
