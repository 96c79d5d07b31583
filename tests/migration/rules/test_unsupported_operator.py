"""Operators that PopTorch does not compile are reported as warnings."""

from __future__ import annotations

RULE = "unsupported-operator"


def test_operators_and_layers(lines):
    """An operator in forward, and a layer where forward calls it."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.pool = nn.FractionalMaxPool2d(2, output_size=2)
            def forward(self, x):
                return torch.fft.fft(self.pool(x))
    """
    assert lines(RULE, code) == [8, 8]


def test_listed_and_composed(lines):
    """Listed operators, and those made of them."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.layer = nn.Linear(2, 2)
            def forward(self, x):
                return nn.functional.gelu(self.layer(x)).flatten(1).softmax(-1).permute(1, 0).contiguous().view(-1)
    """
    assert lines(RULE, code) == []


def test_only_in_traced_code(lines):
    """Host code may use any operator."""
    code = """
        import torch
        torch.fft.fft(torch.zeros(4))
    """
    assert lines(RULE, code) == []


def test_constants(lines):
    """Results of constants, such as masks, are computed while compiling."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                mask = torch.tril(torch.ones(4, 4)) + torch.ones(4, 4, device=x.device).tril()
                return x.tril() * mask
    """
    assert lines(RULE, code) == [7]


def test_a_long_chain_in_a_loop(lines):
    """Each part of an expression is evaluated once: else the time would double with every call of the chain."""
    code = f"""
        import torch
        model = torch.nn.Linear(2, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.rand(4, 2, 2):
            loss = model(x).erfinv(){".relu()" * 30}{"[0]" * 30}.sum()
            loss.backward()
    """
    assert lines(RULE, code) == [5]


def test_the_way_out_is_the_operators(findings):
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                return torch.lerp(x, x + 1, 0.5)
    """
    (found,) = findings(RULE, code)
    assert found.remedy == "Write a + weight * (b - a)."
