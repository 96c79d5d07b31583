"""Operators whose result's size depends on values are reported."""

from __future__ import annotations

RULE = "dynamic-shape"


def test_operators_and_masks(lines):
    """nonzero, masked_select, unique, one-armed where, and boolean indexing."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                x = x.relu()
                a = x.nonzero()
                b = torch.masked_select(x, x > 0)
                c = torch.unique(x)
                d = torch.where(x > 0)
                e = x[x > 0]
                keep = (x > 1) & (x < 2)
                return x[keep]
    """
    assert lines(RULE, code) == [9, 10, 11, 12, 13, 15]


def test_fixed_sizes(lines):
    """Slices, index tensors, three-armed where, and assignment under a mask keep their shape."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x, count=2):
                x = x.relu()
                x[x > 1] = 1.0
                order = x.argsort() + torch.histc(x, bins=10).long()
                return torch.where(x > 0, x, x[order])[:, 1:].repeat_interleave(2 * count, dim=0)
    """
    assert lines(RULE, code) == []


def test_repeats(lines):
    """repeat_interleave by a tensor, not by a number."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                counts = x.long()
                return x.repeat_interleave(counts) + torch.repeat_interleave(x, counts)
    """
    assert lines(RULE, code) == [9, 9]
