"""Values taken to the host in forward are reported."""

from __future__ import annotations

RULE = "host-value-in-forward"


def test_every_way_to_the_host(lines):
    """item, tolist, numpy, cpu, .to('cpu'), float()."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                x = x.relu()
                a = x.sum().item()
                b = x.tolist()
                c = x.detach().numpy()
                d = x.cpu()
                e = float(x.mean())
                f = x.to("cpu")
                return x
    """
    assert lines(RULE, code) == [9, 10, 11, 12, 13, 14]


def test_python_numbers_convert_freely(lines):
    """int(x.shape[0] / 2) is arithmetic on Python values."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); pass
            def forward(self, x):
                half = int(x.shape[0] / 2)
                return x[: float(half)]
    """
    assert lines(RULE, code) == []


def test_methods_of_parts(lines):
    """forward calls methods of a layer, of an element of a list, and of each of its elements."""
    code = """
        import torch
        from torch import nn

        class Part(nn.Module):
            def __init__(self):
                super().__init__(); self.weight = nn.Parameter(torch.ones(4))
            def decode(self, x):
                return (x * self.weight).tolist()
            def first(self, x):
                return x[0].item()
            def each(self, x):
                return x.sum().item()
            def uncalled(self, x):
                return x.sum().item()

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.part = nn.Linear(4, 4), Part()
                self.parts = nn.ModuleList([Part(), Part()])
            def forward(self, x):
                x = self.body(x)
                found = [part.each(x) for part in self.parts]
                return found, self.parts[0].first(x), self.part.decode(x)
    """
    assert lines(RULE, code) == [8, 10, 12]
