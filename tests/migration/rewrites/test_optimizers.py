"""Implementation switches go; everything else about an optimizer stays."""

from __future__ import annotations

REWRITE = "optimizers"


def test_in_the_middle(rewritten):
    """Other arguments keep their places."""
    before = """\
import torch
o = torch.optim.Adam(p, fused=True, lr=1e-3, foreach=False, weight_decay=0.1)
"""
    after = """\
import torch
o = torch.optim.Adam(p, lr=1e-3, weight_decay=0.1)
"""
    assert rewritten(REWRITE, before) == after


def test_other_arguments(rewritten):
    """amsgrad changes the update, so it is not ours to remove."""
    before = """\
import torch
o = torch.optim.Adam(p, amsgrad=True)
other(fused=True)
"""
    assert rewritten(REWRITE, before) == before
