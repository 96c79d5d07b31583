"""A registered tensor of another shape in forward is reported; one of the same shape is a note, or is in place."""

from __future__ import annotations

RULE = "rebound-buffer"


def test_assignment(lines, findings):
    """The name of the buffer is bound to another tensor."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.register_buffer("mean", torch.ones(1)); self.scale = nn.Parameter(x)
            def forward(self, x):
                self.mean = torch.cat([self.mean, x[0]])
                self.scale = x
                return x
    """
    assert lines(RULE, code) == [8, 9]
    in_shape = code.replace("torch.cat([self.mean, x[0]])", "0.9 * self.mean + x.mean()")
    assert [(each.line, each.severity) for each in findings(RULE, in_shape)] == [(8, "note"), (9, "error")]


def test_weights(lines):
    """In-place writes, `.data` and `-=`; a penalty on weights writes none."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self, encoder):
                super().__init__()
                self.fast, self.slow = encoder(), encoder()
            def forward(self, x):
                for slow, fast in zip(self.slow.parameters(), self.fast.parameters()):
                    slow.data = 0.9 * slow.data + 0.1 * fast.data
                    slow.data.mul_(0.9).add_(0.1 * fast)
                    slow -= 0.1 * fast
                penalty = sum(weight.pow(2).sum() for weight in self.parameters())
                return self.fast(x) * penalty
    """
    assert lines(RULE, code) == [10, 11, 12]


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
