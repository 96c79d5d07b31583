"""Weights changed with their gradients on the host are reported."""

from __future__ import annotations

RULE = "hand-written-update"


def test_loops_and_single_weights(lines):
    """In a loop over the parameters, and one by one."""
    code = """
        for p in model.parameters():
            p -= lr * p.grad
        for n, q in model.named_parameters():
            q.data.add_(q.grad, alpha=-lr)
        w -= lr * w.grad
    """
    assert lines(RULE, code) == [2, 4, 5]


def test_initialisation(lines):
    """Weights set before training are loaded with the model."""
    code = """
        for p in model.parameters():
            p.data.mul_(0.5)
        total += x.item()
    """
    assert lines(RULE, code) == []
