"""64-bit numbers that go into a program, or come out of it."""

from __future__ import annotations

import torch

CODE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Embedding(4, 4)

    def forward(self, x):
        return self.layer(x % 4){result}


def make():
    return Net(), torch.tensor({values})
"""


def test_results(traced):
    assert traced(CODE.format(result=".argmax(2)", values=[[1, 2]])) == [(10, "narrowed-dtype")]


def test_indices_beyond_32_bits(traced):
    largest = torch.iinfo(torch.int32).max
    assert traced(CODE.format(result="", values=[[1, largest]])) == []
    assert traced(CODE.format(result="", values=[[1, largest + 1]])) == [(14, "narrowed-dtype")]


def test_double_precision_in_a_batch(traced):
    code = """
    import torch

    def make():
        return torch.nn.Linear(4, 2).double(), torch.ones(8, 4, dtype=torch.float64)
    """
    assert traced(code) == [(3, "narrowed-dtype"), (3, "unsupported-dtype")]
