"""`check` says of the code of a model whether a run compiles it, runs it function by function, or refuses it.

This goes by the origin of the values that code reads.
"""

from __future__ import annotations

import textwrap
from typing import Tuple

import pytest

from ignite_ipu.migration.verdict import Verdict
from tests.doors.judging import assert_refused, assert_trains

pytestmark = pytest.mark.filterwarnings("ignore")

PROGRAM = """
import argparse
import random
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

SEEN, CALLS, COUNTS, STATE = [], 0, {{"calls": 0}}, argparse.Namespace(calls=0)

def peek(x):
    return x * x.max().item()

def places(count):
    return torch.arange(count).tolist()

def count_calls(x):
    global CALLS
    CALLS += 1
    return x * CALLS

class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, gradient):
        return -gradient

class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4)
    def forward(self, numbers):
        if numbers.max() > 3:
            raise ValueError("too long")
        return self.table(numbers)

class Gate(nn.Module):
    def __init__(self, hard=False):
        super().__init__()
        self.fc, self.hard = nn.Linear(4, 4), hard
    def forward(self, x):
        if self.hard and self.fc(x).mean() > 0:
            x = -x
        return x

class Output:
    def __init__(self, scores):
        self.scores = scores

class Counted:
    made = 0
    def __init__(self, scores):
        self.scores = scores
        Counted.made += 1

class Net(nn.Module):
    def __init__(self, flag=False):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.flag = flag
        {init}
    def forward(self, x):
        {forward}

torch.manual_seed(0), random.seed(0), np.random.seed(0)
model = Net({given})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
# Statements in __init__, statements of forward, and the arguments of the construction.
TRAINED = {
    "a check of inputs in a part": (
        "self.places = Positions()",
        "return self.fc(x) + self.places(x.abs().long().clamp(max=3)).sum(1)",
    ),
    "a tensor that is trained and no parameter": (
        "self.scale = torch.ones(1, requires_grad=True)",
        "return self.fc(x) * self.scale",
    ),
    "states that each call sets anew": (
        "self.cell = nn.LSTMCell(4, 4)",
        "z = lambda: torch.zeros(len(x), 4)\nself.h, self.c, self.seen, self.t = z(), z(), [], 0\n"
        "for _ in range(2):\n    self.h, self.c = self.cell(x, (self.h, self.c))\n"
        "    self.h = self.h.tanh()\n    self.seen.append(self.h)\n    self.t += 1\n"
        "return self.fc(self.seen[0] + self.h) * self.t",
    ),
    "a count in a buffer": (
        "self.register_buffer('steps', torch.tensor(0))",
        "self.steps += 1\nreturn self.fc(x) * self.steps",
    ),
    "a flag in a buffer": ("self.register_buffer('on', torch.tensor(True))", "if self.on: x = -x\nreturn self.fc(x)"),
    "a buffer's number": ("self.register_buffer('k', torch.tensor(2))", "return self.fc(x) * int(self.k)"),
    "a list of positions": ("", "return self.fc(x) * torch.arange(4).tolist()[1]"),
    "a list in a function": ("", "return self.fc(x) + sum(places(x.shape[1]))"),
    "a number of a constant": ("", "return self.fc(x) * float(torch.tensor([2, 3])[0])"),
    "a shape from constants": ("", "n = torch.tensor([4]).sum()\nreturn self.fc(x).view(-1, int(n))"),
    "places of constants": (
        "self.register_buffer('mask', torch.tensor([True, False, True, True]))",
        "return self.fc(x)[:, torch.nonzero(self.mask).flatten()]",
    ),
    "a constant mask": ("", "return self.fc(x)[:, torch.arange(4) % 2 == 0]"),
    "a mask of zeros like the input": ("", "if torch.zeros_like(x).any(): x = -x\nreturn self.fc(x)"),
    "a table of the host": ("self.table = torch.tensor([1.0, 2.0])", "return self.fc(x) * self.table[0].item()"),
    "a repeat by constants": ("", "return self.fc(x).repeat_interleave(torch.tensor([1, 2, 1, 1]), dim=1)"),
    "positions in a part": (
        "self.places = Positions()",
        "return self.fc(x) + self.places(torch.arange(x.shape[1])).sum(0)",
    ),
    "a flag that is off": ("", "if self.flag: x = x * x.mean().item()\nreturn self.fc(x)"),
    "a part's flag that is off": ("self.gate = Gate()", "return self.fc(self.gate(x))"),
    "a buffer that is assigned": (
        "self.register_buffer('mean', torch.zeros(4))",
        "self.mean = 0.9 * self.mean + x.mean(0).detach()\nreturn self.fc(x - self.mean)",
    ),
    "a flag in a buffer that the first call sets": (
        "self.register_buffer('ready', torch.tensor(False)); self.register_buffer('scale', torch.ones(4))",
        "if not self.ready:\n    self.scale.copy_(x.abs().max(0).values)\n    self.ready.fill_(True)\n"
        "return self.fc(x / self.scale)",
    ),
    "a function behind a flag that is off": ("", "if self.flag: x = peek(x)\nreturn self.fc(x)"),
    "a lambda of shapes": ("", "scale = lambda z: z * z.shape[0]\nreturn scale(self.fc(x))"),
    "a loop over constants": ("", "for k in torch.arange(3): x = x + int(k)\nreturn self.fc(x)"),
    "a comparison of shapes": ("", "if torch.tensor(x.shape).prod() > 2: x = -x\nreturn self.fc(x)"),
    "a layer that no forward calls": ("self.pool = nn.MaxPool1d(2, return_indices=True)", "return self.fc(x)"),
    "a number format behind a flag that is off": ("", "if self.flag: x = x.bfloat16()\nreturn self.fc(x)"),
    "a penalty on weights": ("", "return self.fc(x) + 0.01 * sum(each.abs().sum() for each in self.parameters())"),
    "an object for each call": ("", "return Output(self.fc(x)).scores"),
    "bags of constant places": (
        "self.bag = nn.EmbeddingBag(4, 4)",
        "return self.fc(x) + self.bag(torch.arange(4), torch.arange(0, 4, 2))",
    ),
    "a settled shape": ("", "assert x.shape[0] == 2\nreturn self.fc(x)"),
}
BY_FUNCTION = {
    "the mean of the input": ("", "if x.mean() > 0: x = -x\nreturn self.fc(x)"),
    "a number of the output": ("", "y = self.fc(x)\nreturn y / y.abs().max().item()"),
    "a number of the weights": ("", "return self.fc(x) / float(self.fc.weight.norm())"),
    "a mask of the input": ("", "y = self.fc(x)\nreturn y[y > 0]"),
    "places of the input": ("", "return self.fc(x).flatten()[torch.nonzero(x.flatten() > 0).flatten()]"),
    "a count of the input": ("", "for _ in range(int(x.abs().sum())): x = x / 2\nreturn self.fc(x)"),
    "a written buffer": (
        "self.register_buffer('count', torch.zeros(()))",
        "self.count.add_(1)\nif self.count > 1: x = -x\nreturn self.fc(x)",
    ),
    "a flag in a buffer that goes on and off": (
        "self.register_buffer('on', torch.zeros(()))",
        "if self.on: self.on.fill_(0)\nelse: self.on.fill_(1)\nreturn self.fc(x) * (1 + self.on)",
    ),
    "a drawn number": ("", "if torch.rand(()) > 0.5: x = -x\nreturn self.fc(x)"),
    "a parameter": ("self.scale = nn.Parameter(torch.ones(()))", "return self.fc(x) * self.scale.item()"),
    "a part's flag that is on": ("self.gate = Gate(hard=True)", "return self.fc(self.gate(x))"),
    "parts in a list": (
        "self.gates = nn.ModuleList([Gate(True), Gate(True)])",
        "for gate in self.gates: x = gate(x)\nreturn self.fc(x)",
    ),
    "a part that is made in two ways": (
        "self.gate = nn.Sequential(Gate(), Gate(hard=True))",
        "return self.fc(self.gate(x))",
    ),
    "a function within": ("", "def size(of):\n    return of.abs().max().item()\nreturn self.fc(x) / size(x)"),
    "a count in a buffer that is read": (
        "self.register_buffer('steps', torch.tensor(0))",
        "self.steps += 1\nreturn self.fc(x) * self.steps.item()",
    ),
    "a lambda": ("", "scale = lambda z: z / z.abs().max().item()\nreturn scale(self.fc(x))"),
    "a lambda that has the variables around it": (
        "",
        "y = self.fc(x)\nscale = lambda z: z / y.norm().item()\nreturn scale(y)",
    ),
    "a lambda in an attribute": ("self.scale = lambda z: z / z.max().item()", "return self.scale(self.fc(x))"),
    "a lambda for each": ("", "return self.fc(x) / sum(map(lambda z: z.max().item(), [x, x]))"),
    "a function within that uses the model": (
        "",
        "def size():\n    return self.fc.weight.abs().max().item()\nreturn self.fc(x) / size()",
    ),
    "a count in a dictionary": ("", "COUNTS['calls'] += 1\nreturn self.fc(x) * COUNTS['calls']"),
    "a count in an object": ("", "STATE.calls += 1\nreturn self.fc(x) * STATE.calls"),
    "a class that counts its objects": ("", "return Counted(self.fc(x)).scores"),
    "a momentum encoder that follows in forward": (
        "self.slow = nn.Linear(4, 4).requires_grad_(False)",
        "with torch.no_grad():\n"
        "    for slow, fast in zip(self.slow.parameters(), self.fc.parameters()): slow.mul_(0.9).add_(0.1 * fast)\n"
        "return self.fc(x) - self.slow(x)",
    ),
    "weights that are bounded in forward": (
        "",
        "with torch.no_grad():\n    for each in self.parameters(): each.data.clamp_(-1, 1)\nreturn self.fc(x)",
    ),
    "a list of the module that grows": ("", "SEEN.append(x.shape[0])\nreturn self.fc(x) * len(SEEN)"),
    "a counter": ("self.calls = 0", "self.calls += 1\nreturn self.fc(x) * self.calls"),
    "a counter in a function": ("", "return self.fc(count_calls(x))"),
    "a list that grows": ("self.log = []", "self.log.append(x.shape[0])\nreturn self.fc(x) * len(self.log)"),
    "a number of Python": ("", "return self.fc(x) * random.random()"),
    "a number of numpy": ("", "return self.fc(x) * float(np.random.rand())"),
    "a constant written with inputs": (
        "",
        "z = torch.zeros(4)\nz = z + x.mean(0)\nif z.sum() > 0: x = -x\nreturn self.fc(x)",
    ),
    "a read whose error is caught": (
        "",
        "try:\n    size = x.max().item()\nexcept Exception:\n    size = 1.0\nreturn self.fc(x) * size",
    ),
}
REFUSED = {
    "bags of computed places": (
        "self.bag = nn.EmbeddingBag(4, 4)",
        "return self.fc(x) + self.bag(torch.arange(4), (x[:, 0] > 9).long().cumsum(0))",
    ),
    "bags of computed places by a function": (
        "self.table = nn.Parameter(torch.ones(4, 4))",
        "starts = (x[:, 0] > 9).long().cumsum(0)\n"
        "return self.fc(x) + F.embedding_bag(torch.arange(4), self.table, offsets=starts)",
    ),
    "a gradient": ("", "x.requires_grad_()\ny = self.fc(x).sum()\nreturn torch.autograd.grad(y, x)[0] * y"),
    "a buffer that grows": (
        "self.register_buffer('seen', torch.zeros(1))",
        "self.seen = torch.cat([self.seen, x.mean(0)[:1].detach()])\nreturn self.fc(x) * self.seen.mean()",
    ),
    "an operator that does not compile": ("", "return torch.linalg.svd(self.fc(x)).S"),
    "an operator without a shape": ("", "y = self.fc(x)\nreturn torch.linalg.lstsq(y, y)[0]"),
    "correlations": ("", "return torch.corrcoef(self.fc(x))"),
    "an argument of a layer": (
        "self.table = nn.Embedding(4, 4, scale_grad_by_freq=True)",
        "return self.fc(x) + self.table(torch.arange(2))",
    ),
    "an argument of layers in a list": (
        "self.tables = nn.ModuleList(nn.Embedding(4, 4, scale_grad_by_freq=True) for _ in range(2))",
        "for table in self.tables: x = x + table(torch.arange(2))\nreturn self.fc(x)",
    ),
    "an argument of a function": ("", "return F.max_pool1d(self.fc(x)[None], 2, return_indices=True)[0]"),
    "an argument that writes weights": (
        "self.table = nn.Embedding(4, 4, max_norm=1.0)",
        "return self.fc(x) + self.table(torch.arange(2))",
    ),
    "an argument that counts in a buffer": (
        "self.norm = nn.BatchNorm1d(4, momentum=None)",
        "return self.norm(self.fc(x))",
    ),
    "a layer that does not compile": (
        "self.pool = nn.MaxUnpool1d(2)",
        "return self.pool(self.fc(x)[None], torch.zeros(1, 2, 4).long())",
    ),
    "a number format": ("", "return self.fc(x).to(torch.bfloat16).float()"),
    "a number format as a method": ("", "return self.fc(x).bfloat16().float()"),
    "complex numbers": ("", "return self.fc(x).to(torch.complex64).real"),
    "a backward of its own": ("", "return Reversed.apply(self.fc(x))"),
}


def text_of(case: Tuple[str, str], given: str = "") -> str:
    init, forward = (textwrap.indent(each or "pass", " " * 8).strip() for each in case)
    return PROGRAM.format(init=init, forward=forward, given=given)


@pytest.mark.parametrize("name", TRAINED)
def test_code_that_reads_constants_trains(name, tmp_path):
    assert_trains(text_of(TRAINED[name]), tmp_path)


@pytest.mark.parametrize("name", BY_FUNCTION)
def test_code_that_reads_computed_values_trains_function_by_function(name, tmp_path):
    assert_trains(text_of(BY_FUNCTION[name]), tmp_path, Verdict.TRAINS_BY_FUNCTION)


@pytest.mark.parametrize("name", REFUSED)
def test_code_that_no_ipu_runs_is_refused(name, tmp_path):
    assert_refused(text_of(REFUSED[name]), tmp_path)
