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
    """Tensors that forward never reads may stay on the CPU."""
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


def test_a_tensor_of_the_module_in_a_loss(lines):
    """Functions that no step compiles may read it, and moved in it is a constant."""
    code = """
        import torch
        from ignite.engine import create_supervised_trainer

        weights = torch.ones(3).cuda()

        def loss_fn(output, y):
            return (output * weights[y]).mean() + (output * weights.to(output.device)).mean()

        def report(output, y):
            return output * weights[y]

        create_supervised_trainer(model, optimizer, loss_fn)
    """
    assert lines(RULE, code) == [7]
