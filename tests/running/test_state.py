"""State that a script carries from batch to batch in Python: the native result, or a refusal at the line."""

from __future__ import annotations

import json

import pytest

HEAD = """
import copy, json, random, numpy as np, torch
from types import SimpleNamespace
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
batches = torch.randn(5, 8, 4, device=device)
out, calls = [], 0
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.count, self.state = nn.Linear(4, 4), 1.0, 0, None
def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    out.append(loss.item())
"""
SCRIPTS = {
    "a hidden state, detached and passed on": """
model = nn.LSTM(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
state = None
for x in batches:
    state = None if state is None else tuple(part.detach() for part in state)
    y, state = model(x, state)
    update(F.mse_loss(y, x))
""",
    "a running mean in a Python float": """
model, mean = nn.Linear(4, 1).to(device), 0.0
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for x in batches:
    update((model(x) - x[:, :1]).pow(2).mean() * (1 + mean))
    mean = 0.9 * mean + 0.1 * out[-1]
""",
    "a number of the model that the loop anneals": """
class Annealed(Model):
    def forward(self, x):
        return self.layer(x) * self.scale
model = Annealed().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, x in enumerate(batches):
    model.scale = 1 / (number + 1)
    update(F.mse_loss(model(x), x))
    model.eval()
    with torch.no_grad():
        out.append(model(x).sum().item())
    model.train()
""",
    "a dropout rate and a mask that are replaced": """
class Masked(Model):
    def forward(self, x):
        return F.dropout(self.layer(x), self.scale) * self.state.to(x.device)
model = Masked().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.scale = 0.0
for number, x in enumerate(batches):
    model.state = torch.arange(4) < number
    update(F.mse_loss(model(x), x))
""",
    "a momentum encoder by assignment, and a queue of its keys": """
queries = nn.Linear(4, 4).to(device)
keys, queue = copy.deepcopy(queries), torch.randn(16, 4, device=device)
keys.requires_grad_(False)
optimizer = torch.optim.SGD(queries.parameters(), lr=0.5)
for number, x in enumerate(batches):
    with torch.no_grad():
        for theirs, mine in zip(keys.parameters(), queries.parameters()):
            theirs.data = theirs.data * 0.5 + mine.data * 0.5
        key = keys(x)
    query = queries(x)
    scores = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.clone().T], 1)
    update(F.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long, device=device)))
    queue[number * 2 : number * 2 + 8] = key
""",
    "a teacher that follows in place through data": """
student = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)).to(device)
teacher = copy.deepcopy(student).eval()
optimizer = torch.optim.Adam(student.parameters(), lr=0.1)
for x in batches:
    with torch.no_grad():
        target = teacher(x)
    update(F.mse_loss(student(x), x + target))
    for theirs, mine in zip(teacher.parameters(), student.parameters()):
        theirs.data.mul_(0.5).add_(mine.data, alpha=0.5)
""",
    "weights clipped through data": """
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for x in batches:
    update((model(x) - x[:, :1]).pow(2).mean())
    kept = [parameter.data for parameter in model.parameters()]
    for values in kept:
        values.clamp_(-0.1, 0.1)
""",
    "globals and a namespace that the loop anneals": """
temperature, args, table = 1.0, SimpleNamespace(beta=1.0), {"bias": 0.0}
def cooled(x):
    return x / temperature
class Annealed(Model):
    def forward(self, x):
        return cooled(self.layer(x)) * self.args.beta + table["bias"]
model = Annealed().to(device)
model.args = args
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, x in enumerate(batches):
    update(F.mse_loss(model(x), x))
    temperature, args.beta, table["bias"] = (2.0, 1.0, 0.0) if number == 0 else (2.0, 0.5, number * 0.1)
    with torch.no_grad():
        out.append(model.eval()(x).sum().item())
    model.train()
""",
    "weights that a handler of Ignite's trainer clips": """
from ignite.engine import Events, create_supervised_trainer
model = nn.Linear(4, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
trainer = create_supervised_trainer(model, optimizer, F.mse_loss, device)
@trainer.on(Events.ITERATION_COMPLETED)
def clip():
    out.append(trainer.state.output)
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)
trainer.run([(x, x) for x in batches], max_epochs=2)
""",
    "a number that a handler of Ignite's trainer anneals": """
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
class Annealed(Model):
    def forward(self, x):
        return self.layer(x) * self.scale
model = Annealed().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = create_supervised_trainer(model, optimizer, F.mse_loss, device)
evaluator = create_supervised_evaluator(model, device=device)
pairs = [(x, x) for x in batches]
@trainer.on(Events.ITERATION_COMPLETED)
def anneal():
    model.scale = 1 / (trainer.state.iteration + 1)
    out.append(trainer.state.output)
    evaluator.run(pairs[:1])
    out.append(evaluator.state.output[0].sum().item())
trainer.run(pairs)
""",
}


IGNITE = """
from ignite.engine import create_supervised_trainer
create_supervised_trainer(model, optimizer, F.mse_loss, device).run([(x, x) for x in batches])
"""


@pytest.mark.parametrize("name", SCRIPTS)
def test_losses_are_the_native_ones(run, monkeypatch, name):
    text = HEAD + SCRIPTS[name] + "print(json.dumps(out))\n"
    found = json.loads(run(text).output[-1])
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    native = json.loads(run(text).output[-1])
    assert len(set(native)) > 1
    assert found == pytest.approx(native, rel=1e-4, abs=1e-6)


LOOP = "for x in batches: update(F.mse_loss(model(x), x))"
COUNTS = "self.count += 1; return self.layer(x) * self.count"
FORWARDS = [
    COUNTS,
    "self.state = (0 if self.state is None else self.state) + x.mean().detach(); return self.layer(x) * self.state",
    "global calls; calls += 1; return self.layer(x) * calls",
    "self.scale *= 0.5; self.count += 1; return self.layer(x) * self.scale",
    "return self.layer(x) * random.random()",
    "return self.layer(x * np.random.rand())",
]


@pytest.mark.parametrize(("body", "steps"), [*((body, LOOP) for body in FORWARDS), (COUNTS, IGNITE)])
def test_a_forward_that_changes_python_values_runs_in_every_call(run, monkeypatch, caplog, body, steps):
    text = HEAD + (
        f"class Changing(Model):\n    def forward(self, x):\n        {body}\n"
        "random.seed(0), np.random.seed(0)\n"
        "model = Changing()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"{steps}\nprint(json.dumps([model.layer.weight.sum().item(), model.count, calls, random.random()]))\n"
    )
    found = json.loads(run(text).output[-1])
    line = len(HEAD.splitlines()) + 3
    assert any(f"script.py:{line}: Changing.forward changes Python values" in each for each in caplog.messages)
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == pytest.approx(json.loads(run(text).output[-1]), rel=1e-4)


def test_an_edit_of_weights_kept_over_an_update_is_native(run, monkeypatch):
    """An earlier `parameter.data` changes with the weight, and a write into it is one into the weight."""
    text = HEAD + (
        "model = nn.Linear(4, 4)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n"
        "update(F.mse_loss(model(batches[0]), batches[0]))\nkept = model.weight.data\n"
        "update(F.mse_loss(model(batches[1]), batches[1]))\nkept.clamp_(-0.1, 0.1)\n"
        "update(F.mse_loss(model(batches[2]), batches[2]))\nprint(model.weight.sum().item())\n"
    )
    found = float(run(text).output[-1])
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == pytest.approx(float(run(text).output[-1]), rel=1e-5)


def test_a_cache_that_the_first_call_fills_is_none(run):
    ran = run(
        HEAD
        + """
class Caching(Model):
    def forward(self, x):
        if self.state is None:
            self.state = 2.0
        return self.layer(x) * self.state
model = Caching()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
update(F.mse_loss(model(batches[0]), batches[0]))
print("trained")
"""
    )
    assert ran.output == ["trained"]
