"""`identity_loss` on the host and on the device."""

from __future__ import annotations

import pytest
import torch

import ignite_ipu.emulator as poptorch

X = torch.tensor([1.0, 2.0, 6.0])


@pytest.mark.parametrize(("reduction", "value"), [("sum", 9.0), ("mean", 3.0)])
def test_reductions(reduction, value, infer):
    assert poptorch.identity_loss(X, reduction).item() == value
    assert infer(lambda x: poptorch.identity_loss(x, reduction), X).item() == value


def test_none_copies():
    copy = poptorch.identity_loss(X, "none")
    assert torch.equal(copy, X) and copy is not X


@pytest.mark.parametrize(("reduction", "factor"), [("sum", 1.0), ("mean", 1 / 3), ("none", 1.0)])
def test_gradients(reduction, factor, gradient):
    """The gradient of a vector is that of its sum."""
    found = gradient(lambda w, x: poptorch.identity_loss(w * x, reduction), torch.zeros(3), X)
    assert torch.allclose(found, X * factor)


def test_only_the_last_loss_counts(gradient):
    """A loss inside a loss keeps its arithmetic and is no loss any more."""

    def nested(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        inner = poptorch.identity_loss(w * x, "mean")
        return poptorch.identity_loss(10 * inner, "sum")

    assert torch.allclose(gradient(nested, torch.zeros(3), X), X * 10 / 3)


def test_unknown_reduction():
    with pytest.raises(AssertionError, match="Unsupported reduction type"):
        poptorch.identity_loss(X, "avg")


@pytest.mark.parametrize("value", [3.0, None])
def test_a_loss_is_a_tensor(value, infer):
    with pytest.raises(poptorch.Error, match=r"must take a torch\.tensor argument"):
        poptorch.identity_loss(value, "mean")
    with pytest.raises(poptorch.Error, match=r"must take a torch\.tensor argument"):
        infer(lambda x: poptorch.identity_loss(value, "mean"), X)
