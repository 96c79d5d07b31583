"""Models and optimizers of hand-written loops are prepared where they are made, or where a function is given them."""

from __future__ import annotations

import pytest

REWRITE = "captured-loops"
IMPORT = "from ignite_ipu import ipu_prepare\n"

LOOP = """\
import torch
from torch import nn
{setup}
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("setup", "prepared"),
    [
        ("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "model"),
        ("optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)", "model"),
        ("optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.1)", "model"),
        ("optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)", "model"),
        ("params = model.parameters()\noptimizer = torch.optim.SGD(params, lr=0.1)", "model"),
        ("optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)", "model, other"),
        ("optimizer = torch.optim.SGD([p for m in (model,) for p in m.parameters()], lr=0.1)\nmodel.train()", "model"),
        (
            "groups = [{'params': m.parameters()} for m in model]\noptimizer = torch.optim.SGD(groups)\nmodel.train()",
            "model",
        ),
    ],
)
def test_optimizers_that_the_file_makes(rewritten, setup, prepared):
    """They are prepared with the models that they train, each as the loop calls it."""
    before = LOOP.format(setup=setup)
    line = next(line for line in setup.splitlines() if line.startswith("optimizer"))
    name, made = line.split(" = ", 1)
    after = before.replace(line, f"{name} = ipu_prepare({made}, {prepared})")
    after = after.replace("from torch import nn\n", "from torch import nn\nfrom ignite_ipu import ipu_prepare\n")
    assert rewritten(REWRITE, before) == after
    assert rewritten(REWRITE, after) == after


@pytest.mark.parametrize(
    ("made", "parameters", "prepared"),
    [
        ("[nn.Linear(4, 4), nn.Linear(4, 1)]", "[p for m in parts for p in m.parameters()]", "*parts"),
        ("nn.ModuleList([nn.Linear(4, 4)])", "[{'params': part.parameters()} for part in parts]", "*parts"),
        (
            "[nn.Linear(4, 4), nn.Linear(4, 1)]",
            "[*parts[0].parameters(), *parts[1].parameters()]",
            "parts[0], parts[1]",
        ),
    ],
)
def test_lists_of_models(rewritten, made, parameters, prepared):
    """They are called one by one, not as the list."""
    setup = f"parts = {made}\noptimizer = torch.optim.SGD({parameters}, lr=0.1)"
    result = rewritten(REWRITE, LOOP.format(setup=setup).replace("model(x)", "parts[0](x)"))
    assert f"optimizer = ipu_prepare(torch.optim.SGD({parameters}, lr=0.1), {prepared})\n" in result


def test_a_list_that_a_function_is_given_models_from(rewritten):
    before = GIVEN.replace("model.train()", "parts = [model.a, model.b]\n    parts.train()").replace(
        "model(x)", "parts[0](x)"
    )
    result = rewritten(REWRITE, before)
    assert "    ipu_prepare(optimizer, *parts, config=" in result
    assert rewritten(REWRITE, result) == result


def test_layout_and_comments_stay(rewritten):
    call = "torch.optim.SGD(  # plain\n    model.parameters(),\n    lr=0.1,\n)"
    before = LOOP.format(setup=f"optimizer = {call}  # for all\n")
    after = before.replace(call, f"ipu_prepare({call}, model)")
    assert rewritten(REWRITE, before).replace(IMPORT, "") == after


GIVEN = """\
from torch.optim import Optimizer
def train_epoch(model, optimizer: Optimizer, loader):
    \"\"\"Train for an epoch.\"\"\"
    model.train()
    # batch by batch
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
"""


def test_a_function_that_is_given_an_optimizer(rewritten):
    """Its callers are unknown, so it prepares its arguments itself, with any optimizer; and once."""
    prepared = 'ipu_prepare(optimizer, model, config={"update": "auto"})'
    after = GIVEN.replace("    # batch", f"    {prepared}\n    # batch")
    after = after.replace("Optimizer\n", f"Optimizer\n{IMPORT}", 1)
    assert rewritten(REWRITE, GIVEN) == after
    assert rewritten(REWRITE, after) == after


@pytest.mark.parametrize("parameter", ["optimizer", "optimizer=None", "optimizer: Lookahead"])
def test_a_function_whose_callers_may_give_it_something_else(rewritten, parameter):
    """None for an evaluation, or a wrapper of an optimizer."""
    before = GIVEN.replace("model, optimizer: Optimizer, loader", f"model, loader, {parameter}")
    assert rewritten(REWRITE, before) == before


@pytest.mark.parametrize(
    "uses",
    ["train_epoch(net, loader, sgd)\ntrain_epoch(net, valid)", "train_epoch(net, loader, Lookahead(sgd))"],
)
def test_a_wrapped_optimizer_or_none_is_no_other_one(rewritten, uses):
    made = "torch.optim.SGD(net.parameters(), lr=0.1)"
    given = GIVEN.replace("model, optimizer: Optimizer, loader", "model, loader, optimizer=None")
    result = rewritten(REWRITE, f"import torch\n{given}net = Net()\nsgd = {made}\n{uses}\n")
    assert f"ipu_prepare({made}, net" in result
    assert "ipu_prepare(optimizer" not in result


def test_a_variable_of_a_loop_is_no_model_in_front_of_the_loop(rewritten):
    before = GIVEN.replace("    # batch", "    for part in parts:\n        part.train()\n    # batch")
    before = before.replace("    model.train()\n", "").replace("model(x)", "parts[0](x)")
    assert rewritten(REWRITE, before) == before


def test_a_function_that_the_file_gives_its_optimizer(rewritten):
    """The one prepared where it is made."""
    made = "torch.optim.SGD(net.parameters(), lr=0.1)"
    before = f"import torch\n{GIVEN}net = Net()\nsgd = {made}\ntrain_epoch(net, sgd, loader)\n"
    after = before.replace(made, f"ipu_prepare({made}, net)").replace("Optimizer\n", f"Optimizer\n{IMPORT}", 1)
    assert rewritten(REWRITE, before) == after


def test_methods(rewritten):
    before = """\
from torch.optim import SGD
class Trainer:
    def __init__(self, model, optimizer: SGD):
        self.model, self.optimizer = model, optimizer

    def fit(self, loader):
        self.model.train()
        for x in loader:
            self.optimizer.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()
"""
    prepared = 'ipu_prepare(self.optimizer, self.model, config={"update": "auto"})'
    after = before.replace("        for x", f"        {prepared}\n        for x")
    assert rewritten(REWRITE, before) == after.replace("SGD\n", f"SGD\n{IMPORT}", 1)


@pytest.mark.parametrize(
    "call", ["model.decode(model.encode(x))", "model.decoder(model.encoder(x))", "model.decode(model.encoder(x))"]
)
def test_parts_of_a_model(rewritten, call):
    """Those that the loop calls, itself or by a method, are prepared with the model that it does not call."""
    setup = """\
class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 2)
        self.decoder = nn.Linear(2, 4)
        self.unused = nn.Linear(1, 1)
    def encode(self, x):
        return self.encoder(x)
    def decode(self, z):
        return self.decoder(z)
    def forward(self, x):
        return self.unused(self.decode(self.encode(x)))
model = Coder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"""
    result = rewritten(REWRITE, LOOP.format(setup=setup).replace("model(x)", call))
    assert "lr=0.1), model, model.decoder, model.encoder)\n" in result


@pytest.mark.parametrize(
    "given",
    [
        "optimizer = make(model)\ntrain_epoch(model, optimizer, loader)",
        "train_epoch(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)",
        "class Run:\n    def __init__(self, sgd):\n        self.sgd = sgd\n    def go(self):\n"
        "        train_epoch(model, self.sgd, loader)\nRun(make(model)).go()",
    ],
)
def test_optimizers_that_go_through_functions_of_the_file(rewritten, given):
    """They are prepared once, where they are made."""
    make = "def make(model):\n    return torch.optim.SGD(model.parameters(), lr=0.1)\n"
    result = rewritten(REWRITE, f"import torch\n{GIVEN}{make}{given}\n")
    assert "ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model" in result
    assert "ipu_prepare(optimizer" not in result


def test_averages_whose_statistics_the_host_computes(rewritten):
    before = """\
import torch
average = torch.optim.swa_utils.AveragedModel(net)
torch.optim.swa_utils.update_bn(loader, average)
average.eval()
with torch.no_grad():
    average(x)
"""
    assert rewritten(REWRITE, before) == before


def test_models_that_are_only_evaluated(rewritten):
    """A teacher, an average of weights: prepared where they are made."""
    made = "torch.nn.Sequential(torch.nn.Linear(4, 2)).to(device)"
    before = f"import torch\nteacher = {made}\nteacher.eval()\nwith torch.no_grad():\n    soft = teacher(x)\n"
    after = before.replace(made, f"ipu_prepare({made})").replace("import torch\n", f"import torch\n{IMPORT}", 1)
    assert rewritten(REWRITE, before) == after


def test_models_that_are_not_in_sight(rewritten):
    before = LOOP.format(setup="optimizer = torch.optim.SGD(params, lr=0.1)").replace("model(x)", "predict(x)")
    assert rewritten(REWRITE, before) == before


@pytest.mark.parametrize(
    "given",
    [
        "from ignite_ipu import create_ipu_trainer\ntrainer = create_ipu_trainer(model, optimizer, loss_fn)\n",
        "model, optimizer = accelerator.prepare(model, optimizer)\n",
        "import poptorch\ntraining_model = poptorch.trainingModel(model, options, optimizer)\n",
    ],
)
def test_optimizers_of_something_else(rewritten, given):
    before = "import torch\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n" + given
    assert rewritten(REWRITE, before) == before
