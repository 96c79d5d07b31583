"""Subclasses of autograd.Function are reported."""

from __future__ import annotations

RULE = "custom-autograd-function"


def test_function(lines):
    """Its backward would never run."""
    code = """
        import torch
        class F(torch.autograd.Function):
            pass
    """
    assert lines(RULE, code) == [2]


def test_other_classes(lines):
    """A module is none."""
    code = """
        import torch
        class F(torch.nn.Module):
            pass
    """
    assert lines(RULE, code) == []
