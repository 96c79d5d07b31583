"""Comparing structures of tensors."""

from __future__ import annotations

import pytest
import torch

from ignite_ipu.emulator.testing import allclose

X = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("ref", "other"),
    [
        (X, X + 1e-6),
        (X, X.double()),
        (X, (X + 1e-3).half()),
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)),
        ((X, [X]), [X, (X,)]),
        ({"a": X, "b": 3}, {"b": 3, "a": X}),
        (torch.tensor(float("nan")), torch.tensor(float("nan"))),
        (None, None),
        ("text", "text"),
    ],
)
def test_equal(ref, other):
    assert allclose(ref, other)


@pytest.mark.parametrize(
    ("ref", "other"),
    [
        (X, X + 1e-2),
        (X, X.unsqueeze(0)),
        (X, torch.tensor([1, 2])),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        ((X, X), (X,)),
        ({"a": X}, {"b": X}),
        (X, None),
        (3, X),
        ("text", "other"),
    ],
)
def test_different(ref, other):
    assert not allclose(ref, other)
