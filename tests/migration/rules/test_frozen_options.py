"""PopTorch code: options changed after their use are reported."""

from __future__ import annotations

RULE = "frozen-options"


def test_after_a_wrapper(lines):
    """Sub-objects freeze too."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        t = poptorch.trainingModel(model, options, optimizer)
        options.deviceIterations(2)
        options.Training.gradientAccumulation(2)
    """
    assert lines(RULE, code) == [7, 8]


def test_before_or_cloned(lines):
    """Clones and new objects are free."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        options.deviceIterations(2)
        l = poptorch.DataLoader(options, d)
        other = options.clone()
        other.deviceIterations(4)
        options = poptorch.Options()
        options.deviceIterations(8)
    """
    assert lines(RULE, code) == []
