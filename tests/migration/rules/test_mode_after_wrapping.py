"""PopTorch code: a mode set after wrapping is reported."""

from __future__ import annotations

RULE = "mode-after-wrapping"


def test_after(lines):
    """The copy keeps the old mode."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        i = poptorch.inferenceModel(model, options)
        model.eval()
    """
    assert lines(RULE, code) == [7]


def test_before(lines):
    """Set first, it is seen."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        model.eval()
        i = poptorch.inferenceModel(model, options)
    """
    assert lines(RULE, code) == []
