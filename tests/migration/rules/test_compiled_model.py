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


def test_a_model_in_torch_compile_is_worth_a_note(findings):
    """Its wrapper trains as it is; a function that torch.compile has made cannot be traced."""
    code = """
        import torch
        def loss(x, y):
            return (x - y).square().mean()
        model = torch.compile(torch.nn.Linear(2, 2))
        fast = torch.compile(loss)
    """
    assert [(found.line, found.severity.value) for found in findings(RULE, code)] == [(4, "note"), (5, "error")]


def test_re_compile(lines):
    """Another compile is not meant."""
    code = """
        import re
        p = re.compile('x')
    """
    assert lines(RULE, code) == []
