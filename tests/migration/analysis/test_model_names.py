"""A variable holds a model when the file shows it, and a loss that is put in a mode is none."""

from __future__ import annotations

import textwrap

import pytest

from ignite_ipu.migration.program import Program
from ignite_ipu.migration.source.file import Source


def models(code):
    program = Program(Source("code.py", "import torch\nfrom torch import nn\n" + textwrap.dedent(code)))
    return program.training.models


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("a = nn.Sequential().to(device).eval()", {"a"}),
        ("a.train()\nself.b.eval()\nc.parameters()", {"a", "self.b", "c"}),
        ("criterion.train()\nloss = criterion(a, b)", set()),
        ("criterion = nn.CrossEntropyLoss().to(device)\ncriterion.train()", set()),
        ("criterion.train()\ncriterion(a)", {"criterion"}),
        ("criterion.train()\nloss = criterion(a, b)\no = O(criterion.parameters())", {"criterion"}),
        ("critic.train()\nloss = critic(a, b)", {"critic"}),
        ("def f(a: nn.Module, b: int): pass", {"a"}),
        ("def f(a: 'torch.nn.Module', loss_fn: nn.Module): pass", {"a"}),
        ("def f(a: nn.Module, b: nn.Module): pass", set()),
        ("a.train()\ndef f(x, net, *, other): pass\nf(1, a, other=a)\nf(2, net=a, other=b)", {"a", "net"}),
    ],
)
def test_what_is_a_model(code, found):
    assert models(code) == found
