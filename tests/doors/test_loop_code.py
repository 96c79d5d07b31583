"""`check` refuses operators of the loop's own code if and only if a run does: those that a loss is computed by."""

from __future__ import annotations

import textwrap
from typing import Any, Tuple

import pytest
import torch

from ignite_ipu import auto
from ignite_ipu.migration.checker import check_paths
from ignite_ipu.migration.findings import Outcome
from ignite_ipu.migration.verdict import Verdict
from tests.doors.judging import assert_refused, assert_trains, losses_of, refusal_of

pytestmark = pytest.mark.filterwarnings("ignore")
ASKS_CLASSES = "handle_torch_function" in torch.autograd.backward.__code__.co_names

PROGRAM = """
import argparse
import functools
import torch
from torch import nn
from torch.nn import functional as F
from torch.distributions import Categorical
from torch.nn.utils import parametrizations, parametrize

MASK = torch.tensor([True, False, True, False]).expand(4, 4)
pool = nn.FractionalMaxPool2d(2, output_size=1)

def spectral(output, target):
    return torch.linalg.svdvals(output).sum()

def parts(output):
    return output.pow(2).mean(), torch.linalg.svdvals(output).sum()

def either(output, hard=False):
    if hard:
        return torch.linalg.svdvals(output).sum()
    return output.pow(2).mean()

def scaled(output, factor=1.0):
    return factor * torch.linalg.svdvals(output).sum()

def mean(output):
    return output.mean()

class SpectralLoss(nn.Module):
    def forward(self, output, target):
        return torch.linalg.svdvals(output).sum()

class Step:
    def __init__(self, model):
        self.model = model
    def loss(self, x):
        return torch.linalg.svdvals(self.model(x)).sum()

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion, step = SpectralLoss(), Step(model)
critic, even = nn.Linear(4, 1), nn.Linear(4, 4)
parametrizations.orthogonal(even)
HARD, KIND, CONFIG = True, "mean", {{"loss": {{"kind": "spectral"}}}}
options = argparse.ArgumentParser()
options.add_argument("--penalty", default="spectral")
options.add_argument("--plain", action="store_true")
args = options.parse_args(["--plain"])
terms, by_name = [mean, scaled], {{"mean": mean, "spectral": scaled}}
values_of, double = torch.linalg.svdvals, functools.partial(scaled, factor=2.0)
losses = []

def train():
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 3])
    optimizer.zero_grad()
    out = model(x)
    {body}
    loss.backward()
    optimizer.step()
    {after}
    losses.append(loss.item())

if __name__ == "program":
    for _ in range(2):
        train()
"""
PLAIN = "loss = out.pow(2).mean()\n"
READ = "losses.append(s.sum().item())"
# Statements between the call of the model and backward(), and behind the step.
TRAINED = {
    "a mask of the output": ("loss = out[out > 0].mean()", ""),
    "a mask of a metric": ("d = out.detach()\ns = d[d > 0].sum()\n" + PLAIN, READ),
    "a selection by a mask of the output": ("loss = out.masked_select(out > 0).mean() + out.mean()", ""),
    "a metric of a detached output": (PLAIN + "s = torch.linalg.svdvals(out.detach())", READ),
    "a metric with gradients": (PLAIN + "s = torch.linalg.svdvals(out)", READ),
    "a metric that is read before the loss": ("losses.append(torch.linalg.svdvals(out).sum().item())\n" + PLAIN, ""),
    "a metric on the host": (PLAIN + "s = torch.linalg.svdvals(out.detach().cpu())", READ),
    "a metric by numpy": (PLAIN + "s = torch.tensor(out.detach().cpu().numpy()).det()", READ),
    "data": ("target = torch.fft.rfft(x).abs().sum()\nloss = (out - target).pow(2).mean()", ""),
    "an output without gradients": (
        "with torch.no_grad(): t = torch.linalg.svdvals(model(x))\nloss = (out - t).pow(2).mean()",
        "",
    ),
    "detached weights": ("loss = out.mean() + torch.linalg.svdvals(model[0].weight.detach()).sum()", ""),
    "a number": ("s = torch.linalg.svdvals(out).max().item()\nloss = out.pow(2).mean() / s", ""),
    "a shape": ("s = torch.linalg.svdvals(out)\nloss = out.pow(2).mean() * s.shape[0]", ""),
    "logs beside the loss": (
        "found = {'loss': out.mean(), 's': torch.linalg.svdvals(out)}\nloss, s = found['loss'], found['s']",
        READ,
    ),
    "an evaluation with gradients": (
        PLAIN,
        "model.eval()\nseen = model(x)\nlosses.append(seen[seen[:, 0] > -99].sum().item())\nmodel.train()",
    ),
    "a branch that is not taken": ("loss = torch.linalg.svdvals(out).sum() if y.sum() > 9 else out.pow(2).mean()", ""),
    "one of two results": ("loss, s = parts(out)", READ),
    "a mask of the host": ("loss = out[y > 0].mean() + out.masked_select(MASK).mean()", ""),
    "a computed mask behind the step": (PLAIN, "losses.append(out[out > 0].sum().item())"),
    "places that the host reads": (PLAIN + "count = torch.nonzero(out > 0).shape[0] + torch.unique(out).numel()", ""),
    "a number format": ("loss = out.to(torch.bfloat16).float().pow(2).mean()", ""),
    "a number format of data": ("loss = (out - x.to(torch.bfloat16).float()).pow(2).mean()", ""),
    "complex numbers": ("loss = out.to(torch.complex64).abs().mean()", ""),
    "an element of a list of functions": ("loss = terms[0](out)", ""),
    "an element of a dictionary of functions": ("loss = by_name['mean'](out)", ""),
    "a flag that is off": ("loss = out.mean() if HARD else torch.linalg.svdvals(out).sum()", ""),
    "a name that is another": ("loss = out.mean()\nif KIND == 'spectral': loss = scaled(out)", ""),
    "an option that is given": ("loss = out.mean() if args.plain else torch.linalg.svdvals(out).sum()", ""),
    "a name in a dictionary that is another": (
        "loss = out.mean()\nif CONFIG['loss']['kind'] == 'l1': loss = scaled(out)",
        "",
    ),
    "a function by a name in a variable": ("loss = by_name[KIND](out)", ""),
    "a flag of a function that is off": ("loss = either(out)", ""),
    "functions of torch.special and torch.linalg": (
        "loss = torch.special.exp2(out).sum() + torch.linalg.diagonal(out).sum() + torch.special.sinc(out).sum()",
        "",
    ),
    "covariances": ("loss = torch.cov(out).pow(2).mean() + out.T.cov(correction=0).sum()", ""),
    "gradients for an output that has some": ("out.requires_grad_()\n" + PLAIN, ""),
    "samples that are read after the step": (
        "a = Categorical(logits=out).sample()\n" + PLAIN,
        "losses.append(float(0 * a.sum()))",
    ),
    "a sample in evaluation mode": (
        "model.eval()\nd = Categorical(logits=model(x))\na = d.sample()\nr = float((a == 1).sum())\n"
        "loss = -d.log_prob(a).mean() * r",
        "",
    ),
    "samples of an evaluation": (
        "with torch.no_grad(): a = Categorical(logits=model(x)).sample()\nlosses.append(0.0 * a.sum().item())\n"
        + PLAIN,
        "",
    ),
    "the entropy of a distribution": (
        "d = Categorical(logits=out)\nlosses.append(d.entropy().mean().item())\nloss = -d.log_prob(y).mean()",
        "",
    ),
    "a model with its own weights": (
        "loss = torch.func.functional_call(model, dict(model.named_parameters()), (x,)).pow(2).mean()",
        "",
    ),
    "a transformed loss": (
        "t = torch.func.grad(lambda v: pool(v[None, None]).mean())(x)\nloss = (out - t).pow(2).mean()",
        "",
    ),
    "a cache of a model without parametrizations": (
        "with parametrize.cached():\n    loss = model(out).pow(2).mean()",
        "",
    ),
}
REFUSED = {
    "an operator": ("loss = torch.linalg.svdvals(out).sum()", ""),
    "an operator without a shape": ("loss = torch.linalg.lstsq(out, x)[0].sum()", ""),
    "the first of two results": ("loss = torch.adaptive_max_pool1d(out, 2)[0].sum()", ""),
    "correlations": ("loss = torch.corrcoef(out).sum()", ""),
    "a method": ("loss = out.kthvalue(2).values.mean()", ""),
    "a method in place": ("out = out.lgamma_()\nloss = out.mean()", ""),
    "a function": ("loss = spectral(out, y)", ""),
    "an element of a dictionary": ("found = {'loss': torch.linalg.svdvals(out).sum()}\nloss = found['loss']", ""),
    "a lambda": ("f = lambda z: torch.linalg.svdvals(z)\nloss = f(out).sum()", ""),
    "a loss": ("loss = criterion(out, y)", ""),
    "a layer": ("loss = pool(out[None, None]).mean()", ""),
    "a method of a class with the model": ("loss = step.loss(x)", ""),
    "the other of two results": ("_, loss = parts(out)", ""),
    "a target of a detached output": ("t = torch.linalg.svdvals(out.detach())\nloss = (out - t).pow(2).mean()", ""),
    "a weight": (PLAIN + "loss = loss + torch.linalg.svdvals(model[0].weight).sum()", ""),
    "a sum in a loop": ("loss = 0\nfor i in range(2): loss += torch.linalg.svdvals(out[i:]).sum()", ""),
    "a sum of a dictionary": (
        "found = {'a': out.mean(), 'b': torch.linalg.svdvals(out).sum()}\nloss = sum(found.values())",
        "",
    ),
    "a stack of a list": (
        "found = []\nfound.append(out.mean())\nfound.append(torch.linalg.svdvals(out).sum())\n"
        "loss = torch.stack(found).sum()",
        "",
    ),
    "a loss that is read": ("t = torch.linalg.svdvals(out).sum()\nlosses.append(t.item())\nloss = t", ""),
    "an argument": ("values, _ = F.max_pool1d(out[None], 2, return_indices=True)\nloss = values.mean()", ""),
    "a function by another name": ("loss = values_of(out).sum()", ""),
    "a function with arguments": ("loss = double(out)", ""),
    "functions in a list": ("loss = sum(term(out) for term in terms)", ""),
    "a loop over functions": ("loss = 0\nfor term in terms: loss = loss + term(out)", ""),
    "a function in a dictionary": ("loss = by_name['spectral'](out)", ""),
    "functions in a dictionary": ("loss = 0\nfor name, term in by_name.items(): loss = loss + term(out)", ""),
    "a flag that is on": ("loss = out.mean()\nif HARD: loss = loss + torch.linalg.svdvals(out).sum()", ""),
    "the default of an option": ("loss = out.mean()\nif args.penalty == 'spectral': loss = scaled(out)", ""),
    "a name in a dictionary": ("loss = scaled(out) if CONFIG['loss']['kind'] == 'spectral' else out.mean()", ""),
    "a function by the default of an option": ("loss = by_name[args.penalty](out)", ""),
    "a flag of a function that is on": ("loss = either(out, hard=True)", ""),
    "a penalty on mixed samples": (
        "mixed = (0.5 * x + 0.5 * out.detach()).requires_grad_()\n"
        "g = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]\n"
        "loss = out.mean() + ((g.norm(dim=1) - 1) ** 2).mean()",
        "",
    ),
    "a penalty on samples": (
        "real = x.clone().requires_grad_()\n"
        "loss = torch.autograd.grad(model(real).sum(), real, create_graph=True)[0].pow(2).mean()",
        "",
    ),
    "a penalty by a flag": (
        "real = x.clone().requires_grad_()\n"
        "g, = torch.autograd.grad(model(real).sum(), real, create_graph=HARD)\n"
        "loss = out.mean() + g.pow(2).mean()",
        "",
    ),
    "a penalty by position": (
        "real = x.clone().requires_grad_()\n"
        "g, = torch.autograd.grad(model(real), real, torch.ones_like(out), True, True)\n"
        "loss = out.mean() + g.pow(2).mean()",
        "",
    ),
    "a gradient of weights by a flag": (
        PLAIN + "g = torch.autograd.grad(loss, list(model.parameters()), create_graph=HARD)\n"
        "loss = sum(each.pow(2).sum() for each in g)",
        "",
    ),
    "a graph of the backward pass by a flag": (PLAIN + "loss.backward(create_graph=HARD)", ""),
    "a graph of the backward pass by position": (PLAIN + "torch.autograd.backward([loss], None, None, True)", ""),
    "a gradient of an output": (PLAIN + "g = torch.autograd.grad(loss, out, retain_graph=True)[0]", ""),
    "gradients for a detached output": ("loss = model(out.detach().requires_grad_()).pow(2).mean()", ""),
    "a gradient by torch.func": (
        "g = torch.func.grad(lambda v: model(v).pow(2).sum())(x)\nloss = out.mean() + g.pow(2).mean()",
        "",
    ),
    "a transform of a function": (
        "def energy(v):\n    return critic(v).sum()\ng = torch.func.grad(energy)(x)\n" + PLAIN,
        "",
    ),
    "a transformed model": ("loss = torch.vmap(model)(x).pow(2).mean()", ""),
    "a transformed model in an evaluation": (
        PLAIN,
        "with torch.no_grad(): losses.append(torch.func.vmap(model)(x).sum().item())",
    ),
    "an adapted model within a transform": (
        "def adapted(weights):\n    return torch.func.functional_call(model, weights, (x,)).pow(2).mean()\n"
        "g = torch.func.grad(adapted)(dict(model.named_parameters()))\n" + PLAIN,
        "",
    ),
    "a model with weights of another": (
        "w = {'weight': out[:1], 'bias': out[1, :1]}\nloss = torch.func.functional_call(critic, w, (x,)).mean()",
        "",
    ),
    "a model with moved weights": (
        "moved = {name: 0.9 * each for name, each in model.named_parameters()}\n"
        "loss = torch.func.functional_call(model, moved, (x,)).pow(2).mean()",
        "",
    ),
    "a model with its state": (
        PLAIN + "t = torch.func.functional_call(model, model.state_dict(), (x,))\nloss = loss + 0 * t.mean()",
        "",
    ),
    "a cache of parametrized weights": (
        "with parametrize.cached():\n    loss = even(even(x)).pow(2).mean() + out.mean()",
        "",
    ),
    "a sample that is read": (
        "d = Categorical(logits=out)\na = d.sample()\nr = float((a == 1).sum())\nloss = -d.log_prob(a).mean() * r",
        "",
    ),
    "a loss of a sample": ("d = Categorical(logits=out)\na = d.sample()\nloss = -d.log_prob(a).mean()", ""),
    "samples that act": (
        "d = Categorical(logits=out)\na = d.sample()\nstate = a.cpu().numpy()\nloss = -d.log_prob(a).mean()",
        "",
    ),
    "a drawn choice": (
        "a = torch.bernoulli(out.sigmoid())\nif a.sum() > 3: x = -x\n" + PLAIN,
        "",
    ),
    "rows that are repeated by the output": ("loss = out.repeat_interleave((out[:, 0] > 0).long(), 0).sum()", ""),
}
MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4{layer})
    def forward(self, x):
        return self.fc(x)

torch.manual_seed(0)
dtype, config = torch.bfloat16, {{"dtype": torch.bfloat16, "name": "bfloat16"}}
{before}
model = Net()
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4).to(torch.bfloat16)).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
CONVERTED = {
    "to": ("model.to(torch.bfloat16)", ""),
    "to a device": ("model = model.to('cpu', torch.bfloat16)", ""),
    "to a variable": ("model.to(dtype)", ""),
    "by name": ("model.bfloat16()", ""),
    "as a type": ("model.type(torch.bfloat16)", ""),
    "to a setting": ("model.to(config['dtype'])", ""),
    "to a setting by name": ("model.to(getattr(torch, config['name']))", ""),
    "a part": ("model.fc.to(torch.bfloat16)", ""),
    "a layer": ("", ", dtype=torch.bfloat16"),
}
DEFAULTS = (
    "torch.set_default_dtype(torch.bfloat16)",
    "torch.set_default_dtype(config['dtype'])",
    "torch.set_default_dtype(getattr(torch, config['name']))",
    "torch.set_default_tensor_type(torch.BFloat16Tensor)",
    "torch.set_default_tensor_type('torch.BFloat16Tensor')",
)


def text_of(case: Tuple[str, str]) -> str:
    body, after = (textwrap.indent(each or "pass", " " * 4).strip() for each in case)
    return PROGRAM.format(body=body, after=after)


@pytest.mark.parametrize("name", TRAINED)
def test_operators_that_no_loss_is_computed_by_run_on_the_host(name, tmp_path):
    assert_trains(text_of(TRAINED[name]), tmp_path)


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_a_loss_is_computed_by_have_to_compile(name, tmp_path):
    if "torch.autograd.backward" in text_of(REFUSED[name]) and not ASKS_CLASSES:
        pytest.skip("torch.autograd.backward does not ask classes of tensors in PyTorch 2.0")
    assert_refused(text_of(REFUSED[name]), tmp_path)


@pytest.mark.parametrize("name", CONVERTED)
def test_a_model_in_a_number_format_that_an_ipu_lacks_is_refused_at_its_conversion(name, tmp_path):
    """A layer is made in it without a conversion, and refused where it is called."""
    model, layer = CONVERTED[name]
    assert_refused(MODEL.format(before="", model=model, layer=layer), tmp_path)


@pytest.mark.parametrize("default", DEFAULTS)
@pytest.mark.parametrize("model", ["", "torch.set_default_dtype(torch.float32)"])
def test_a_model_in_a_default_format_that_an_ipu_lacks_is_refused_at_the_line_that_sets_it(default, model, tmp_path):
    text = MODEL.format(before=default, model=model, layer="").replace(".to(torch.bfloat16)", ".to(dtype)")
    try:
        assert_refused(text, tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_model_that_is_converted_from_a_default_format_trains(tmp_path):
    model = "torch.set_default_dtype(torch.float32)\nmodel = model.float()"
    text = MODEL.format(before=DEFAULTS[0], model=model, layer="").replace(".to(torch.bfloat16)", "")
    assert_trains(text, tmp_path)


@pytest.mark.parametrize("called", ["losses_of_mine.spectral(out)", "out.mean()"])
def test_losses_of_other_files(called: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function counts if a loss of the program is computed by it, at its own line."""
    loop = PROGRAM.replace("import torch\n", "import torch\nimport losses_of_mine\n", 1)
    text = loop.format(body=f"loss = {called}", after="pass")
    other = tmp_path / "losses_of_mine.py"
    other.write_text("import torch\n\ndef spectral(output):\n    return torch.linalg.svdvals(output).sum()\n")
    script = tmp_path / "program.py"
    script.write_text(text)
    report = check_paths([str(tmp_path)])
    refused = [(each.path, each.line) for each in report.findings if each.run is Outcome.REFUSED]
    monkeypatch.syspath_prepend(str(tmp_path))
    if called == "out.mean()":
        with auto.enabled():
            assert len(losses_of(text, tmp_path)) == 2
        assert report.verdicts[str(script)] is Verdict.TRAINS
    else:
        assert refused == [refusal_of(text, tmp_path).line] == [(str(other), 4)]
        assert report.verdicts[str(script)] is Verdict.REFUSED
