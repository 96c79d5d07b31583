"""Slices whose start is a tensor, against Python's slices."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ignite_ipu.emulator as poptorch

X = torch.arange(24.0).reshape(4, 6)


def start(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32)


class Slices(nn.Module):
    def __init__(self, dim: int, size: int, step: int) -> None:
        super().__init__()
        self.arguments = (dim, size, step)

    def forward(self, x: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        dim, size, step = self.arguments
        updated = poptorch.dynamic_update(x, -x.narrow(dim, 0, size), dim, begin, size)
        return poptorch.dynamic_slice(x, dim, begin, size, step), updated


@given(st.sampled_from([(0, 1), (0, 2), (0, 4), (1, 2), (1, 3), (1, 6)]), st.integers(1, 3))
def test_slices_equal_pythons_and_wrap_round(dim_and_size, step):
    """One program serves every start; past the end it goes on at the beginning."""
    dim, size = dim_and_size
    model = poptorch.inferenceModel(Slices(dim, size, step))
    twice = torch.cat([X, X], dim)
    for begin in range(X.shape[dim]):
        sliced, updated = model(X, start(begin))
        window = [slice(None)] * dim
        assert torch.equal(sliced, twice[(*window, slice(begin, begin + size, step))])
        expected = X.clone()
        for offset in range(size):
            expected[(*window, (begin + offset) % X.shape[dim])] = -X[(*window, offset)]
        assert torch.equal(updated, expected)
    model.destroy()


def test_on_the_host_slices_do_not_wrap():
    """They are Python's ordinary ones."""
    assert torch.equal(poptorch.dynamic_slice(X, 1, start(3), 3, 2), X[:, 3:6:2])
    assert torch.equal(poptorch.dynamic_slice(X, 1, start(5), 3, 1), X[:, 5:8])
    assert torch.equal(poptorch.dynamic_slice(X, -1, start(-3), 2, 1), X[:, -3:-1])
    assert poptorch.dynamic_slice(X, 1, start(3), -1, 1).shape == (4, 0)
    with pytest.raises(RuntimeError, match="expected src to have a size equal to the slice"):
        poptorch.dynamic_update(X, torch.zeros(4, 2), 1, start(X.shape[1] - 1), 2)
    updated = poptorch.dynamic_update(X, torch.zeros(4, 2), 1, start(2), 2)
    assert updated[:, 2:4].eq(0).all() and X[:, 2:4].ne(0).all()


def test_gradients_flow_through(gradient):
    """Only elements that were read get a gradient; overwritten ones get none."""
    read = gradient(
        lambda w, s: poptorch.identity_loss(poptorch.dynamic_slice(w, 0, s, 2, 1).sum(), "sum"),
        torch.zeros(4),
        start(1),
    )
    assert torch.equal(read, torch.tensor([0.0, 1.0, 1.0, 0.0]))
    kept = gradient(
        lambda w, s: poptorch.identity_loss(poptorch.dynamic_update(w, w[:2] * 3, 0, s, 2).sum(), "sum"),
        torch.zeros(4),
        start(2),
    )
    assert torch.equal(kept, torch.tensor([4.0, 4.0, 0.0, 0.0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 1, start(0), 2, 1), r"must take a torch\.tensor input"),
        ((X, 1.0, start(0), 2, 1), "Dimension must be an integer"),
        ((X, 1, 0, 2, 1), "Slice start argument"),
        ((X, 1, torch.tensor([0.0]), 2, 1), "Slice start argument"),
        ((X, 1, start(0), 2.0, 1), "Size must be an integer"),
        ((X, 1, start(0), 2, 1.0), "Step must be an integer"),
    ],
)
def test_types(arguments, message):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.dynamic_slice(*arguments)


@pytest.mark.parametrize(
    ("size", "step", "message"),
    [
        (4, 1, "must be a factor of the slicing"),
        (0, 1, "must be different"),
        (-2, 1, "end less than"),
        (2, 0, "step must be 1 or more"),
    ],
)
def test_sizes_that_do_not_compile(size, step, message, infer):
    with pytest.raises(poptorch.Error, match=message):
        infer(lambda x, s: poptorch.dynamic_slice(x, 1, s, size, step), X, start(0))


@pytest.mark.parametrize("dim", [2, 5, -3])
def test_a_dimension_that_there_is(dim, infer):
    with pytest.raises(poptorch.Error, match=f"Dimension {dim} is out of range"):
        infer(lambda x, s: poptorch.dynamic_slice(x, dim, s, 2, 1), X, start(0))
    with pytest.raises(poptorch.Error, match=f"Dimension {dim} is out of range"):
        infer(lambda x, s: poptorch.dynamic_update(x, x, dim, s, 2), X, start(0))


def test_updates_that_do_not_fit(infer):
    with pytest.raises(poptorch.Error, match="must have same dimensionality"):
        poptorch.dynamic_update(X, torch.zeros(4), 1, start(0), 1)
    with pytest.raises(poptorch.Error, match="must have same dtype"):
        poptorch.dynamic_update(X, torch.zeros(4, 2).half(), 1, start(0), 2)
    with pytest.raises(poptorch.Error, match="src must have shape"):
        infer(lambda x, s: poptorch.dynamic_update(x, x, 1, s, 2), X, start(0))
    with pytest.raises(poptorch.Error, match="must be a scalar"):
        infer(lambda x, s: poptorch.dynamic_slice(x, 1, s, 2, 1), X, torch.zeros(2, dtype=torch.int32))
