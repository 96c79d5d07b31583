"""A training step is understood only when one call can take its place; what stands in the way is named."""

from __future__ import annotations

import ast
import textwrap

import pytest

from ignite_ipu.migration.program import Program
from ignite_ipu.migration.source.file import Source

SETTING = """
import torch
from torch import nn
import torch.nn.functional as F
model = nn.Sequential(nn.Linear(4, 2))
other = nn.Sequential(nn.Linear(4, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.train()
def accuracy(out, target):
    right = (out.argmax(1) == target).float()
    return right.mean().item()
def nudge(out, target):
    out.add_(target)
for x, y in loader:
"""


def step(body):
    code = SETTING + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    (found,) = Program(Source("code.py", code)).training.steps
    return found


COMMON = """
optimizer.zero_grad()
output = model(x)
loss = criterion(output, y)
loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("output = model(x)\nloss = criterion(output, y)", "loss = criterion(model(x), y)"),
        ("optimizer.zero_grad()\n", "model.zero_grad()\n"),
        ("optimizer.zero_grad()\n", "x, y = x.to(device), y.to(device)\noptimizer.zero_grad(set_to_none=True)\n"),
        ("loss.backward()\n", "losses.append(loss.item())\nloss.backward()\n"),
        ("loss.backward()\n", "right = output.argmax(1).eq(y.view_as(z)).float().mean()\nloss.backward()\n"),
        ("loss.backward()\n", "running += accuracy(output, y)\nloss.backward()\n"),
        ("loss.backward()\n", "loss.backward()\nrunning += loss.item() * len(x)\n"),
        ("model(x)", "model(x, mask=y)"),
        ("criterion(output, y)", "F.cross_entropy(output, y.long())"),
        ("criterion(output, y)", "criterion(output.squeeze(1), y.float())"),
        ("criterion(output, y)", "nn.CrossEntropyLoss()(output, y)"),
        ("output = model(x)", "output = model(*x)"),
        ("output = model(x)", "output = model(**x)"),
        ("criterion(output, y)", "output.mean()"),
        ("criterion(output, y)", "output.loss"),
        ("criterion(output, y)", "output['loss']"),
        ("criterion(output, y)", "output[0]"),
        ("output = model(x)\nloss = criterion(output, y)", "loss = model(x, y)"),
        ("output = model(x)\nloss = criterion(output, y)", "loss = model(**x).loss"),
        ("output = model(x)\nloss = criterion(output, y)", "output, loss = model(x, y)"),
        ("loss.backward()\n", "loss.backward()\nnn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"),
    ],
)
def test_common_shapes_are_understood(old, new):
    """Order of clearing, nesting, moves, readings, keywords, other losses, clipping."""
    assert old in COMMON
    assert step(COMMON.replace(old, new)).reason == ""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("optimizer.zero_grad()\n", "", "not cleared"),
        ("loss.backward()\n", "loss = loss / 4\nloss.backward()\n", "'loss', which the loss is"),
        ("loss.backward()\n", "(loss / 4).backward()\n", "divided or combined"),
        ("loss.backward()\n", "loss += penalty\nloss.backward()\n", "built up in several statements"),
        ("loss.backward()\n", "scaler.scale(loss).backward()\n", "GradScaler"),
        ("loss.backward()\n", "loss.backward(retain_graph=True)\n", "has arguments"),
        ("optimizer.step()\n", "if i % 4 == 0:\n    optimizer.step()\n", "accumulated by hand"),
        ("optimizer.step()\n", "optimizer.step(closure)\n", "closure"),
        ("loss.backward()\noptimizer.step()\n", "loss.backward(); optimizer.step()\n", "share a line"),
        ("optimizer.step()\n", "", "no optimizer.step()"),
        ("loss.backward()\n", "nudge(output, y)\nloss.backward()\n", "may depend on their order"),
        ("optimizer.step()\n", "model.weight.data.clamp_(0, 1)\noptimizer.step()\n", "may depend on their order"),
        ("loss.backward()\n", "loss.backward()\noptimizer.zero_grad()\n", "may depend on their order"),
        ("loss = criterion(output, y)", "y = model(y)\nloss = criterion(output, y)", "'y' is carried"),
        ("loss = criterion(output, y)", "z = other(x)\nloss = criterion(output, z)", "further call of a model"),
        ("output = model(x)", "x = other(x)\noutput = model(x)", "further call of a model"),
        ("loss = criterion(output, y)", "loss = criterion(output, y) + other(x).mean()", "further call of a model"),
        ("output = model(x)", "output, state = model(x, state)", "'state' is carried"),
        ("output = model(x)", "output = model(x, memory)\nmemory = output", "'memory' is carried"),
        ("output = model(x)\nloss = criterion(output, y)", "loss = criterion(y, model(x))", "larger expression"),
        ("output = model(x)\nloss = criterion(output, y)", "loss = criterion(model(x), y) * 0.5", "larger expression"),
        ("output = model(x)", "output = unseen(x)", "does not show 'unseen' to be a model"),
        (
            "loss = criterion(output, y)\n",
            "part = criterion(output, y)\nloss = part + output.mean()\nshown += part.item()\n",
            "'part' is bound between the forward and the update, not for the loss alone",
        ),
        ("loss = criterion(output, y)", "loss = model(x).loss + model(y).loss", "larger expression"),
        ("loss = criterion(output, y)", "loss = output.losses.loss + other(y).loss", "further call of a model"),
        ("output = model(x)", "output = torch.relu(x)", "not computed from one call of the model"),
        ("loss.backward()\n", "nn.utils.clip_grad_norm_(model[0].parameters(), 1.0)\nloss.backward()\n", "order"),
        ("optimizer.step()\n", "nn.utils.clip_grad_norm_(other.parameters(), 1.0)\noptimizer.step()\n", "clipping"),
        ("optimizer.step()\n", "nn.utils.clip_grad_norm_(model.parameters(), y)\noptimizer.step()\n", "from batch to"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_reason(old, new, reason):
    """Each of these would train differently if it were rewritten."""
    assert old in COMMON
    found = step(COMMON.replace(old, new, 1))
    assert found.plan is None
    assert reason in found.reason


@pytest.mark.parametrize("context", ["torch.autocast('cuda')", "torch.cuda.amp.autocast()", "model.no_sync()"])
def test_steps_under_other_regimes_are_refused(context):
    found = step(f"with {context}:\n" + textwrap.indent(COMMON.strip(), "    "))
    assert found.plan is None
    assert "under" in found.reason


def test_an_optimizer_over_another_model_is_refused():
    """Its gradients would come from outside the program that is compiled."""
    body = COMMON.replace("optimizer", "wide")
    code = SETTING.replace("for x", "wide = torch.optim.SGD([*model.parameters(), *other.parameters()], 0.1)\nfor x")
    code += textwrap.indent(body.strip("\n"), "    ")
    (found,) = Program(Source("code.py", code)).training.steps
    assert "also updates the parameters of other" in found.reason


def test_a_loss_over_names_of_a_function_becomes_a_function_in_it():
    code = (
        SETTING.rsplit("for", 1)[0]
        + """
def train(loader, weight):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        output = model(x)
        penalty = output.abs().mean()
        loss = weight * criterion(output, y) + penalty
        loss.backward()
        optimizer.step()
"""
    )
    (found,) = Program(Source("code.py", code)).training.steps
    assert found.plan is not None
    assert isinstance(found.plan.function_before, ast.For)
    assert found.plan.per_batch == ("y",)
    assert [statement.targets[0].id for statement in found.plan.loss_statements] == ["penalty"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        # Read afterwards, too.
        ("loss.backward()\n", "loss.backward()\n        log(penalty)\n", "'penalty' is bound"),
        ("penalty = output.abs().mean()", "penalty = other(output)", "further call of a model"),
        ("penalty = output.abs().mean()", "penalty = output.abs().mean() * self.beta", "'self.beta', which changes"),
        ("penalty = output.abs().mean()", "f = heads[y]\n        penalty = f(output)", "changes from batch to batch"),
        ("penalty = output.abs().mean()", "penalty = output.abs().mean() + penalty", "carried"),
    ],
)
def test_losses_of_several_statements_that_are_refused(old, new, reason):
    code = (
        SETTING.rsplit("for", 1)[0]
        + """
class Run:
    def anneal(self):
        self.beta = 0.5 * self.beta

    def train(self, loader):
        for x, y in loader:
            optimizer.zero_grad()
            output = model(x)
            penalty = output.abs().mean()
            loss = criterion(output, y) + penalty
            loss.backward()
            optimizer.step()
"""
    ).replace(old, new.replace("\n        ", "\n            "))
    (found,) = Program(Source("code.py", code)).training.steps
    assert found.plan is None
    assert reason in found.reason


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        ("optim.RMSprop(model.parameters())", "RMSprop cannot clip"),
        ("optim.SGD(model.parameters(), 0.1, 0.9)", "with momentum"),
        ("optim.SGD([{'params': p, 'momentum': 0.9}], 0.1)", "in sight"),
        ("optim.SGD(model.parameters(), **settings)", "in sight"),
    ],
)
def test_clipping_that_would_differ_is_refused(optimizer, reason):
    """PopTorch's SGD clips what the weights are updated with, which momentum makes another thing."""
    body = COMMON.replace("loss.backward()\n", "loss.backward()\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\n")
    code = SETTING.replace("optim.SGD(model.parameters(), lr=0.1)", optimizer) + textwrap.indent(body.strip(), "    ")
    (found,) = Program(Source("code.py", code)).training.steps
    assert reason in found.reason


@pytest.mark.parametrize(
    "body",
    [
        "hidden = repackage(hidden)\nout, hidden = model(x, hidden)\nloss = criterion(out, y)",
        "out, self.hidden = model(x, self.hidden)\nloss = criterion(out, y)",
        "state = [h.detach() for h in hidden]\nout, hidden = model(x, state)\nloss = criterion(out, y)",
        "out = model(x + noise)\nnoise = 0.9 * noise\nloss = criterion(out, y)",
        "count += 1\nout = model(x, count)\nloss = criterion(out, y)",
    ],
)
def test_state_is_followed_through_an_iteration(body):
    """Whatever an earlier batch left behind, however it is passed on."""
    body += "\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"
    assert "is carried from one batch to the next" in step(body).reason


@pytest.mark.parametrize(
    "body",
    [
        "hidden = torch.zeros(2)\nout, hidden = model(x, hidden)\nloss = criterion(out, y)",
        "noise = torch.randn(2)\nx = x + noise\nout = model(x)\nloss = criterion(out, y)",
        "x = x.view(-1)\nx = x.to(device)\nout = model(x)\nloss = criterion(out, y)\ntotal = total + loss.item()",
    ],
)
def test_what_is_made_anew_is_an_input_like_any_other(body):
    body += "\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"
    assert step(body).reason == ""


def test_globals_keep_state_between_calls_of_a_process_function():
    code = SETTING.rsplit("for", 1)[0] + (
        "def update(engine, batch):\n    global hidden\n    optimizer.zero_grad()\n"
        "    out, hidden = model(batch[0], hidden)\n    loss = criterion(out, batch[1])\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    (found,) = Program(Source("code.py", code)).training.steps
    assert "'hidden' is carried" in found.reason


def test_numbers_of_the_epoch_come_with_the_batch():
    """A compiled loss would keep the first epoch's weight."""
    code = (
        SETTING.rsplit("for", 1)[0]
        + """
for epoch in range(3):
    weight, criterion = epoch / 3, nn.MSELoss()
    for x, y in loader:
        optimizer.zero_grad()
        output = model(x)
        loss = weight * criterion(output, y)
        loss.backward()
        optimizer.step()
"""
    )
    (found,) = Program(Source("code.py", code)).training.steps
    assert found.plan is not None
    assert found.plan.per_batch == ("weight", "y")


LOSS = """
import torch
from torch import nn
class Criterion(nn.Module):
    def __init__(self, part=None):
        super().__init__()
        INIT
    def forward(self, output, y):
        return FORWARD
model = nn.Linear(4, 2)
criterion = Criterion()MOVED
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
""" + textwrap.indent(COMMON.lstrip("\n"), "    ")


@pytest.mark.parametrize(
    ("init", "forward", "understood"),
    [
        ("self.gamma, self.part = 2.0, part", "((output - y) ** self.gamma).mean()", True),
        ("self.inner = nn.CrossEntropyLoss(reduction='none')", "self.inner(output, y).mean()", True),
        ("self.register_buffer('weight', torch.ones(2))", "(output * self.weight - y).pow(2).mean()", True),
        ("self.scale = nn.Parameter(torch.ones(2))", "(output * self.scale - y).pow(2).mean()", False),
        ("self.layer = nn.Linear(2, 2)", "(self.layer(output) - y).pow(2).mean()", False),
        ("self.part = part", "self.part(output).mean()", False),
        ("self.part = part", "self.part.encode(output).mean()", False),
        ("self.calls = 0", "self.mean(output)\n    def mean(self, x):\n        return x.mean()", True),
        ("self.calls = 0", "self.mean(output)\n    def mean(self, x):\n        self.calls += 1", False),
    ],
)
@pytest.mark.parametrize("moved", ["", ".to(device)"])
def test_loss_modules_of_the_file(init, forward, understood, moved):
    """One without weights is a loss function; one with weights, or that may have some, another model."""
    code = LOSS.replace("INIT", init).replace("FORWARD", forward).replace("MOVED", moved)
    (found,) = Program(Source("code.py", code)).training.steps
    if moved and not understood:
        return  # an object that a method returns is taken for what it is used as
    assert (found.plan is not None) is understood


def test_variables_of_comprehensions_are_their_own():
    """`sum(loss for loss in ...)` carries no `loss` from one batch to the next."""
    found = step(
        """
        optimizer.zero_grad()
        losses = model(x)
        total = sum(loss for loss in losses.values())
        total.backward()
        optimizer.step()
        """
    )
    assert found.plan is not None
    assert found.plan.per_batch == ()


def test_a_step_by_a_scaler_is_named():
    """`scaler.step(optimizer)` is no closure."""
    assert "GradScaler" in step(COMMON.replace("optimizer.step()", "scaler.step(optimizer)")).reason
