"""Python and numpy generators in forward are reported, torch's are not."""

from __future__ import annotations

RULE = "python-randomness"


def test_random_and_numpy(lines):
    """Both draw once, while tracing."""
    code = """
        import torch
        from torch import nn
        import random, numpy as np
        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                a = random.random()
                b = np.random.rand()
                return x + a + b
    """
    assert lines(RULE, code) == [8, 9]


def test_torch(lines):
    """torch.rand draws on the device."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                return x + torch.rand_like(x)
    """
    assert lines(RULE, code) == []
