"""Models compiled for other back ends are reported."""

from __future__ import annotations

RULE = "compiled-model"


def test_calls_and_decorators(lines):
    """torch.compile and TorchScript, both ways."""
    code = """
        import torch
        m = torch.compile(torch.nn.Linear(2, 2))
        @torch.jit.script
        def f(x): return x
    """
    assert lines(RULE, code) == [2, 3]


def test_re_compile(lines):
    """Another compile is not meant."""
    code = """
        import re
        p = re.compile('x')
    """
    assert lines(RULE, code) == []
