"""Operators that return their argument."""

from __future__ import annotations

import pytest
import torch

import ignite_ipu.emulator as poptorch

X = torch.arange(6.0).reshape(2, 3)

IDENTITIES = [
    poptorch.nop,
    poptorch.recomputationCheckpoint,
    lambda t: poptorch.set_available_memory(t, 0.25),
]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_values_and_gradients_pass_unchanged(identity, infer, gradient):
    """On the device as on the host."""
    assert identity(X) is X
    assert torch.equal(infer(lambda t: identity(t * 2) + 1, X), X * 2 + 1)
    found = gradient(lambda w, x: poptorch.identity_loss(identity(w * x), "sum"), torch.ones(2, 3), X)
    assert torch.equal(found, X)


def test_operators_leave_their_mark_in_the_graph(compiled):
    """The compiler's view shows a nop and the memory that a product may use."""
    model = compiled(lambda t: poptorch.nop(poptorch.set_available_memory(t @ t.t(), 0.25)))
    model(X)
    operators = {
        node.meta["operator"]: node for node in model._executable.compiled.graph.nodes.nodes if "operator" in node.meta
    }
    assert "nop" in operators
    assert operators["matmul"].meta["available_memory"] == 0.25


@pytest.mark.parametrize("share", [-0.1, 1.5, "half", True])
def test_a_share_of_memory_is_between_0_and_1(share, infer):
    with pytest.raises(poptorch.Error, match="between 0 and 1"):
        infer(lambda t: poptorch.set_available_memory(t, share), X)


def test_only_tensors_pass():
    with pytest.raises(poptorch.Error, match=r"must take a torch\.tensor argument"):
        poptorch.nop(3)
    with pytest.raises(poptorch.Error, match=r"may only set available memory for torch\.tensor"):
        poptorch.set_available_memory([X], 0.5)
    with pytest.raises(ValueError, match="All inputs must be tensors"):
        poptorch.recomputationCheckpoint(X, 3)


def test_checkpoints_keep_the_container(infer):
    """One tensor gives a tensor, several a tuple, a list a list."""
    assert torch.is_tensor(poptorch.recomputationCheckpoint(X))
    assert isinstance(poptorch.recomputationCheckpoint(X, X), tuple)
    assert isinstance(poptorch.recomputationCheckpoint([X, X]), list)
    outputs = infer(lambda t: poptorch.recomputationCheckpoint([t, t + 1]), X)
    assert isinstance(outputs, list) and torch.equal(outputs[1], X + 1)
