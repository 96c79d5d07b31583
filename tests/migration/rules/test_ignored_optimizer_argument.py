"""Arguments that only choose an implementation are reported as notes."""

from __future__ import annotations

RULE = "ignored-optimizer-argument"


def test_switches(lines):
    """fused, foreach, capturable."""
    code = """
        import torch
        torch.optim.AdamW(p, fused=True)
        torch.optim.SGD(p, lr=1, foreach=False)
    """
    assert lines(RULE, code) == [2, 3]


def test_none(lines):
    """None leaves the choice to torch."""
    code = """
        import torch
        torch.optim.AdamW(p, fused=None)
    """
    assert lines(RULE, code) == []
