"""Arguments that change the update are reported."""

from __future__ import annotations

RULE = "unsupported-optimizer-argument"


def test_arguments(lines):
    """Refused ones and silently ignored ones, in torch's classes and PopTorch's."""
    code = """
        import torch, poptorch
        torch.optim.Adam(p, amsgrad=True)
        poptorch.optim.SGD(p, lr=1, maximize=True)
        torch.optim.SGD(p, lr=torch.tensor(0.1))
        torch.optim.Adam(p, betas=[0.9, 0.99])
    """
    assert lines(RULE, code) == [2, 3, 4, 5]


def test_off(lines):
    """Switched off they are harmless; maximize of torch.optim is honoured."""
    code = """
        import torch
        torch.optim.Adam(p, amsgrad=False, maximize=False, betas=(0.9, 0.99))
        torch.optim.Adam(p, maximize=True)
    """
    assert lines(RULE, code) == []
