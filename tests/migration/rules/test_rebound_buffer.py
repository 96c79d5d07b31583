"""A registered tensor replaced in forward is reported; one changed in place is not."""

from __future__ import annotations

RULE = "rebound-buffer"


def test_assignment(lines):
    """The name of the buffer is bound to another tensor."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.register_buffer("mean", torch.ones(1)); self.scale = nn.Parameter(x)
            def forward(self, x):
                self.mean = 0.9 * self.mean + x.mean()
                self.scale = x
                return x
    """
    assert lines(RULE, code) == [8, 9]


def test_in_place(lines):
    """copy_ and += keep the tensor."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.register_buffer("mean", torch.zeros(1))
            def forward(self, x):
                self.mean.copy_(x.mean())
                self.mean += 1
                return x
    """
    assert lines(RULE, code) == []
