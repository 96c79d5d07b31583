"""Python state changed in forward is reported; buffers changed in place are not."""

from __future__ import annotations

RULE = "mutated-python-state"


def test_counters_lists_and_globals(lines):
    """Attributes, containers and globals are all left behind by the trace."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                global calls
                calls = 1
                self.count += 1
                self.history.append(x.mean())
                self.cache["x"] = x
                return x
    """
    assert lines(RULE, code) == [9, 10, 11, 12]


def test_buffers_and_local_values_are_fine(lines):
    """A buffer changed in place is the device's; a local list is a Python value of this trace."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.register_buffer("steps", torch.zeros(()))
            def forward(self, x):
                self.steps += 1
                parts = []
                parts.append(x)
                return torch.cat(parts)
    """
    assert lines(RULE, code) == []


def test_only_what_forward_reaches(lines):
    """A method that forward never calls may change what it likes."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                return x
            def reset(self):
                self.count = 0
    """
    assert lines(RULE, code) == []
