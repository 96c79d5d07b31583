"""Shapes of training scripts that people write, small: each ends with the native result, or is refused at its line."""

from __future__ import annotations

import json
import re

import pytest

from ignite_ipu.errors import RunError

HEAD = """
import json, numpy as np, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler, random_split
torch.manual_seed(0)
np.random.seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x, y = torch.randn(32, 4), torch.randint(3, (32,))
out = []
"""
NET = """
model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
TASKS = """
class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.value, self.kind = nn.Linear(4, 6), nn.Linear(6, 1), nn.Linear(6, 3)
    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.value(h), self.kind(h)
model = Tasks().to(device)
"""
SCRIPTS = {
    "an order that forward draws from a generator of its own": """
class Shuffled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
    def forward(self, x):
        order = torch.randperm(4, generator=torch.Generator().manual_seed(3))
        return self.layer(x[:, order.tolist()] + x[:, order])
model = Shuffled().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
out.append(loss.item())
""",
    "a language model whose hidden state is passed on, detached": """
class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.decode = nn.Embedding(9, 5), nn.LSTM(5, 6), nn.Linear(6, 9)
    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.embed(tokens), hidden)
        return F.log_softmax(self.decode(output).view(-1, 9), dim=1), hidden
    def init_hidden(self, size):
        weight = next(self.parameters())
        return weight.new_zeros(1, size, 6), weight.new_zeros(1, size, 6)
tokens, rate = torch.randint(9, (13, 4)).to(device), 1.0
model = Language().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for epoch in range(2):
    for training in (True, False):
        model.train(training)
        hidden = model.init_hidden(4)
        for i in range(0, 12, 3):
            hidden = tuple(state.detach() for state in hidden)
            with torch.set_grad_enabled(training):
                predicted, hidden = model(tokens[i : i + 3], hidden)
                loss = F.nll_loss(predicted, tokens[i + 1 : i + 4].view(-1))
            if training:
                model.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                optimizer.step()
            out.append(loss.item())
    optimizer.param_groups[0]["lr"] /= 4
""",
    "contrastive learning from two views in one batch": NET
    + """
for i in range(0, 32, 8):
    views = torch.cat([x[i : i + 8] + 0.1 * torch.randn(8, 4) for _ in range(2)]).to(device)
    z = F.normalize(model(views), dim=1)
    similar = (z @ z.t() / 0.5).masked_fill(torch.eye(16, dtype=torch.bool, device=device), -1e9)
    loss = F.cross_entropy(similar, (torch.arange(16, device=device) + 8) % 16)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    out.append(loss.item())
""",
    "mixup with a share that NumPy draws for each batch": NET
    + """
for i in range(0, 32, 8):
    inputs, targets = x[i : i + 8].to(device), y[i : i + 8].to(device)
    share, order = np.random.beta(1.0, 1.0), torch.randperm(8).to(device)
    scores = model(share * inputs + (1 - share) * inputs[order])
    loss = share * F.cross_entropy(scores, targets) + (1 - share) * F.cross_entropy(scores, targets[order])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right = scores.argmax(1)
    out += [loss.item(), share * (right == targets).sum().item() + (1 - share) * (right == targets[order]).sum().item()]
""",
    "a random split and a weighted sampler": NET
    + """
train, held_out = random_split(TensorDataset(x, y), [24, 8])
weights = [1.0 + float(train[i][1] == 0) for i in range(24)]
for inputs, targets in DataLoader(train, 8, sampler=WeightedRandomSampler(weights, 24)):
    loss = F.cross_entropy(model(inputs.to(device)), targets.to(device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    out.append(loss.item())
model.eval()
with torch.no_grad():
    out += [F.cross_entropy(model(a.to(device)), b.to(device)).item() for a, b in DataLoader(held_out, 4)]
""",
    "losses weighed by a module with weights of its own": TASKS
    + """
class Uncertainty(nn.Module):
    def __init__(self):
        super().__init__()
        self.logs = nn.Parameter(torch.zeros(2))
    def forward(self, losses):
        return (torch.exp(-self.logs) * torch.stack(losses)).sum() + self.logs.sum()
weigh = Uncertainty().to(device)
groups = [{"params": model.parameters()}, {"params": weigh.parameters(), "lr": 0.1}]
optimizer = torch.optim.Adam(groups, lr=0.02)
for i in range(0, 32, 8):
    value, kind = model(x[i : i + 8].to(device))
    losses = [F.mse_loss(value, x[i : i + 8, :1].to(device)), F.cross_entropy(kind, y[i : i + 8].to(device))]
    loss = weigh(losses)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    out += [loss.item(), losses[0].item()]
out += weigh.logs.tolist()
""",
    "penalties on weights before the first call, and losses weighed by a bare parameter": TASKS
    + """
logs = nn.Parameter(torch.zeros(2, device=device))
optimizer = torch.optim.Adam([*model.parameters(), logs], lr=0.02)
for i in range(0, 32, 8):
    l1 = torch.tensor(0., requires_grad=True)
    for parameter in model.parameters():
        l1 = l1 + parameter.abs().sum()
    value, kind = model(x[i : i + 8].to(device))
    loss = torch.exp(-logs[0]) * value.pow(2).mean() + F.cross_entropy(kind, y[i : i + 8].to(device)) + 0.01 * l1
    optimizer.zero_grad()
    (loss + logs.sum()).backward()
    optimizer.step()
    out += [loss.item(), l1.item(), model.body.weight.norm().item()]
out += logs.tolist()
""",
    "accumulation by hand over a number of batches that leaves some over": NET
    + """
optimizer.zero_grad()
losses = []
for i in range(8):
    loss = F.cross_entropy(model(x[4 * i : 4 * i + 4].to(device)), y[4 * i : 4 * i + 4].to(device)) / 3
    loss.backward()
    losses.append(loss.detach())
    if (i + 1) % 3 == 0 or i == 7:
        optimizer.step()
        optimizer.zero_grad()
out += [3 * float(loss) for loss in losses]
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_results_are_the_native_ones(run, monkeypatch, name):
    text = f"{HEAD}{SCRIPTS[name]}\nprint(json.dumps(out))\n"
    ran = run(text)
    found = json.loads(ran.output[-1])
    assert ran.became("backward()") == "part of the device step"
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    assert found == pytest.approx(json.loads(run(text).output[-1]), rel=1e-4, abs=1e-6)


REFUSED = {
    "rows that are repeated as often as the device computes": (
        NET
        + """
similar = model(x) @ model(x).t()
others = similar.repeat_interleave(similar.argmax(1), 0)  # here
others.mean().backward()
optimizer.step()
""",
        "and a compiled program has fixed shapes (repeat_interleave()). Keep the full shape and mask instead",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_mapped_is_refused_at_its_line(run, name):
    text, reason = REFUSED[name]
    with pytest.raises(RunError, match=re.escape(reason)) as refused:
        run(HEAD + text)
    (line,) = [number for number, content in enumerate((HEAD + text).splitlines(), 1) if content.endswith("# here")]
    assert f"script.py:{line}" in str(refused.value)
