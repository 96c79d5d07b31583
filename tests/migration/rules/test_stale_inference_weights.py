"""PopTorch code: inference executors made before the training one are reported."""

from __future__ import annotations

RULE = "stale-inference-weights"


def test_before(lines):
    """They keep the weights of their first call."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        i = poptorch.inferenceModel(model)
        t = poptorch.trainingModel(model, options, optimizer)
    """
    assert lines(RULE, code) == [6]


def test_after_or_copied(lines):
    """Made later, or refreshed by hand."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        i = poptorch.inferenceModel(model)
        t = poptorch.trainingModel(model, options, optimizer)
        i.copyWeightsToDevice()
    """
    assert lines(RULE, code) == []
