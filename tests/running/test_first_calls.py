"""Masks, tables and layers that a forward makes in its first calls and keeps: a script trains as in eager PyTorch."""

from __future__ import annotations

import json

import pytest

HEAD = """
import functools, json, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
text = torch.randint(0, 20, (6, 4, 9), device=device)
out = []
def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for ids in batches:
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 20), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    model.eval()
    with torch.no_grad():
        out.append(model(batches[0][:, :-1]).sum().item())
"""
SCRIPTS = {
    "a mask and positions, made once and kept": """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.mask = nn.Linear(16, 16), None
    def forward(self, x):
        n = x.size(1)
        if self.mask is None or self.mask.size(0) != n:
            self.mask = torch.triu(torch.full((n, n), float("-inf")), diagonal=1).to(x.device)
        return torch.softmax(self.layer(x) @ x.transpose(1, 2) / 4 + self.mask, -1) @ x
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention, self.head = nn.Embedding(20, 16), Attention(), nn.Linear(16, 20)
        self.places = None
    def forward(self, ids):
        if self.places is None:
            self.places = torch.arange(ids.size(1), device=ids.device)
        return self.head(self.attention(self.embedding(ids) + 0.1 * self.places[None, :, None]))
model = Model().to(device)
train(model, text)
out += [*model.attention.mask.shape, model.attention.mask.exp().sum().item(), *model.places.tolist()]
""",
    "a rotary cache for the length of the last batch": """
class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", 0.1 ** torch.arange(8.0))
        self.length, self.cosines = None, None
    def forward(self, x):
        if x.size(1) != self.length:
            self.length = x.size(1)
            self.cosines = torch.outer(torch.arange(self.length, device=x.device), self.frequencies).cos()
        return x * self.cosines.repeat(1, 2)
model = nn.Sequential(nn.Embedding(20, 16), Rotary(), nn.Linear(16, 20)).to(device)
train(model, [ids[:, : 7 if number % 3 else 9] for number, ids in enumerate(text)])
out += [model[1].length, model[1].cosines.sum().item()]
""",
    "tables by length, in a dictionary and a cache of Python's": """
@functools.lru_cache(None)
def distances(n):
    return torch.log1p((torch.arange(n)[:, None] - torch.arange(n)).abs().float()).to(device)
class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias, self.tables = nn.Embedding(16, 1), {}
    def forward(self, x):
        n = x.size(1)
        if n not in self.tables:
            self.tables[n] = torch.arange(n).sub(torch.arange(n)[:, None]).to(device) + 8
        return torch.softmax(x @ x.transpose(1, 2) + self.bias(self.tables[n]).squeeze(-1) - distances(n), -1) @ x
model = nn.Sequential(nn.Embedding(20, 16), Biased(), nn.Linear(16, 20)).to(device)
train(model, [ids[:, : 7 if number % 2 else 9] for number, ids in enumerate(text)])
out += [*sorted(model[1].tables), model[1].tables[8].sum().item(), distances(6).sum().item()]
""",
    "layers of the width that a first batch shows": """
class Grown(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.layers, self.head = nn.Embedding(20, 16), nn.ModuleList(), nn.LazyLinear(20)
    def forward(self, ids):
        x = self.embedding(ids)
        if not self.layers:
            self.layers += [nn.Linear(x.size(-1), x.size(-1)) for _ in range(2)]
        if not hasattr(self, "places"):
            self.register_buffer("places", torch.arange(x.size(1)).float()[:, None])
        for layer in self.layers:
            x = torch.tanh(layer(x) + 0.1 * self.places)
        return self.head(x)
model = Grown().to(device)
with torch.no_grad():
    model(text[0][:, :8])
out.append(torch.rand(()).item())
train(model, text)
out += [len(model.state_dict()), model.state_dict()["places"].sum().item()]
""",
    "lazy layers that the first call makes": """
class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = None
    def forward(self, ids):
        if self.embedding is None:
            self.embedding, self.head = nn.Embedding(20, 16), nn.LazyLinear(20)
        return self.head(self.embedding(ids))
model = Late().to(device)
with torch.no_grad():
    model(text[0])
train(model, text)
out.append(type(model.head) is nn.Linear)
""",
    "a part that is asked for its shape, and a head that is replaced": """
class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.features = nn.Sequential(nn.Conv1d(16, 4, 3, padding=1), nn.ReLU(), nn.Dropout(0.0))
        width = self.features(torch.zeros(1, 16, 8)).view(1, -1).size(1)
        self.head = nn.Linear(width, 3)
    def forward(self, ids):
        return self.head(self.features(self.embedding(ids).transpose(1, 2)).flatten(1)).view(len(ids), -1, 20)
model = Convolutional().to(device)
model.head = nn.Linear(32, 160)
model.eval()
with torch.no_grad():
    out.append(model(text[0][:, :8]).sum().item())
model.head = nn.Linear(32, 160).to(device)
train(model.train(), text)
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_numbers_are_the_native_ones(run, monkeypatch, name):
    """Losses, predictions and the model's kept values are those of a native run."""
    text = HEAD + SCRIPTS[name] + "print(json.dumps(out))\n"
    found = json.loads(run(text).output[-1])
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")
    native = json.loads(run(text).output[-1])
    assert found == pytest.approx(native, rel=1e-4)
