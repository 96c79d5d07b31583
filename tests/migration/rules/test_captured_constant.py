"""Values of the host that end up in the program, and which of them are worth a word."""

from __future__ import annotations

MODEL = """
import numpy as np
import torch
from torch import nn

outside = torch.ones(4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.temperature = 2.0
        self.depth = 2
        self.calls = 0
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("scale", torch.ones(4))
        self.generator = torch.Generator()

    def forward(self, x):
        y = self.layer(x)
        {line}


def make():
    return Net(), torch.ones(8, 4)
"""
LINE = 21


def rules_at(traced, line):
    return [rule for at, rule in traced(MODEL.format(line=line)) if at == LINE]


def test_tensors_of_the_host(traced):
    assert rules_at(traced, "return y * outside.to(y.device)") == ["captured-constant"]
    assert rules_at(traced, "return y * outside.to(y)") == ["captured-constant"]
    assert rules_at(traced, "return y * torch.from_numpy(np.ones(4, dtype='f4')).to(y.device)") == ["captured-constant"]


def test_numbers_read_from_attributes(traced):
    assert rules_at(traced, "return y / self.temperature") == ["captured-constant"]


def test_numbers_that_change_from_call_to_call(traced):
    """Found by tracing twice: the factor is 1 in the first trace and 1/2 in the next."""
    found = rules_at(traced, "self.calls += 1; return y / self.calls")
    assert found == ["captured-constant", "mutated-python-state"]


def test_tensors_that_change_from_call_to_call(traced):
    line = "self.calls += 1; return y * torch.tensor([1.0, self.calls, 1.0, 1.0])"
    assert "captured-constant" in rules_at(traced, line)


def test_another_way_through_forward(traced):
    found = traced(MODEL.format(line="self.calls += 1; return y.relu() if self.calls % 2 else y.tanh()"))
    assert (LINE, "captured-constant") in found


def test_outputs_that_are_on_the_host(traced):
    assert (LINE - 2, "captured-constant") in traced(MODEL.format(line="return y, outside"))


def test_what_is_no_capture(traced):
    for line in (
        "return y * self.scale",
        "return y * torch.arange(4, device=y.device)",
        "return y * torch.ones(4) * self.depth",
        "return y + torch.randn(4)",
        "self.seen += 1; return y",
        "return y.view(y.shape[0] * 2, -1)",
    ):
        assert traced(MODEL.format(line=line)) == [], line
