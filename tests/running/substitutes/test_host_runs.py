"""A script may export its trained model."""

from __future__ import annotations

from typing import List

import pytest

from ignite_ipu.errors import RunError

TRAINED = """
import torch
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(8, 3, device=device)
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
model.eval()
"""
WEIGHTS = "print(*[p.sum().item() for p in {}.parameters()])\n"


def numbers(output: List[str]) -> List[float]:
    return [float(value) for line in output for value in line.split()]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("made", ["torch.jit.trace(model, x)", "torch.jit.script(model)"])
def test_an_export_has_the_newest_weights(run, natively, made):
    """And the model goes on to be trained on the device."""
    text = TRAINED + f"exported = {made}\n" + WEIGHTS.format("exported")
    text += "model.train()\n" + TRAINED.split("device=device)\n")[1] + WEIGHTS.format("model")
    found = run(text)
    assert "weights of the model" in found.became(made.split("(")[0] + "()")
    assert len(found.output) == 2
    assert numbers(found.output) == pytest.approx(numbers(natively(text)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_an_export_is_not_run_on_the_host(run, mode):
    text = TRAINED + f"exported = torch.jit.script(model)\nexported.{mode}()\n"
    with pytest.raises(RunError, match=rf"script\.py:{len(text.splitlines()) + 1}: .*torch\.jit"):
        run(text + "exported(x)\n")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "keywords"),
    [
        ("torch.jit.trace", "func=model, example_inputs=x"),
        ("torch.jit.trace_module", "mod=model, inputs={'forward': x}"),
        ("torch.jit.script", "obj=model"),
        ("torch.fx.symbolic_trace", "root=model"),
    ],
)
def test_a_model_may_be_exported_by_keyword(run, name, keywords):
    """The result has the weights of the same script run natively."""
    found = run(f"{TRAINED}exported = {name}({keywords})\n" + WEIGHTS.format("exported"))
    assert "weights of the model" in found.became(f"{name}()")
    assert found.output == run(TRAINED + WEIGHTS.format("model")).output


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize("made", ["torch.jit.trace(model, x)", "torch.jit.script(model)"])
def test_an_export_is_saved_with_weights_that_were_trained_after_it(run, natively, made, tmp_path):
    """PyTorch's export has the parameters of the model, not copies."""
    text = TRAINED.replace("for _", f"exported = {made}\nfor _")
    file = str(tmp_path / "model.pt")
    text += f"exported.save({file!r})\nsaved = torch.jit.load({file!r})\n" + WEIGHTS.format("saved")
    text += "print(*[value.sum().item() for value in exported.state_dict().values()])\n"
    on_device = run(text).output
    assert len(on_device) == 2
    assert numbers(on_device) == pytest.approx(numbers(natively(text)))


@pytest.mark.parametrize("trained", ["model", "graph"])
def test_a_model_of_torch_fx_shares_the_weights_of_its_model(run, trained):
    """Each of them is trained, and the other one has its weights."""
    text = TRAINED.replace("optimizer =", "graph = torch.fx.symbolic_trace(model)\noptimizer =").replace(
        "torch\n", "torch, torch.fx\n", 1
    )
    found = run(text.replace("= model(x)", f"= {trained}(x)") + WEIGHTS.format("model") + WEIGHTS.format("graph"))
    assert found.output == run(TRAINED + WEIGHTS.format("model")).output * 2
