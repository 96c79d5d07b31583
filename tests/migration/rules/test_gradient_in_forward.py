"""Gradients computed in forward are reported."""

from __future__ import annotations

RULE = "gradient-in-forward"


def test_autograd(lines):
    """grad and hooks."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                x = x.relu()
                x.register_hook(print)
                (g,) = torch.autograd.grad(x.sum(), x)
                return g
    """
    assert lines(RULE, code) == [9, 10]


def test_no_grad(lines):
    """Cutting gradients off is fine."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                with torch.no_grad():
                    y = x.relu()
                return y.detach()
    """
    assert lines(RULE, code) == []
