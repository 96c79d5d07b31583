"""A plain tensor attribute used in forward is reported."""

from __future__ import annotations

RULE = "unregistered-tensor"


def test_attribute(lines):
    """It stays on the CPU."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.scale = torch.ones(3)
            def forward(self, x):
                return x * self.scale
    """
    assert lines(RULE, code) == [8]


def test_registered(lines):
    """Buffers and parameters move."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.register_buffer("a", torch.ones(3)); self.b = nn.Parameter(torch.ones(3))
            def forward(self, x):
                return x * self.a * self.b
    """
    assert lines(RULE, code) == []


def test_unused_in_forward(lines):
    """What forward never reads may stay on the CPU."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.table = torch.ones(3)
            def forward(self, x):
                return x
    """
    assert lines(RULE, code) == []


def test_moved_in_where_it_is_used(lines):
    """That makes a constant of the program, which works; `check --run` tells of it."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.table = torch.ones(3)
            def forward(self, x):
                return x * self.table.to(x.device) + self.table.to(x) * self.table
    """
    assert lines(RULE, code) == [8]
