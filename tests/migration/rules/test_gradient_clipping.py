"""Clipping on the host is reported."""

from __future__ import annotations

RULE = "gradient-clipping"


def test_both_kinds(lines):
    """By norm and by value."""
    code = """
        from torch.nn.utils import clip_grad_norm_
        import torch
        clip_grad_norm_(p, 1)
        torch.nn.utils.clip_grad_value_(p, 1)
    """
    assert lines(RULE, code) == [3, 4]


def test_clamp(lines):
    """Clamping values is an ordinary operator."""
    code = """
        import torch
        torch.clamp(x, 0, 1)
    """
    assert lines(RULE, code) == []
