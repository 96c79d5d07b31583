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


def test_losses_that_a_loop_calls_itself(lines):
    """They are not traced: the host selects by labels. A trainer that is given the loss traces it."""
    code = """
        import torch
        from torch import nn

        class Smoothed(nn.Module):
            def __init__(self):
                super().__init__()
                self.criterion = nn.KLDivLoss(reduction="sum")
            def forward(self, x, target):
                wanted = torch.full_like(x, 0.1)
                rows = torch.nonzero(target == 0)
                return self.criterion(x, wanted.index_fill(0, rows.squeeze(), 0.0))
    """
    trainer = """
        from ignite.engine import create_supervised_trainer
        create_supervised_trainer(model, optimizer, Smoothed())
    """
    assert lines(RULE, code) == []
    assert lines(RULE, code + trainer) == [10]
    assert lines(RULE, code.replace('KLDivLoss(reduction="sum")', "Linear(2, 2)")) == [10]
