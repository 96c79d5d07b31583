"""PopTorch code: accumulation in inference options is reported."""

from __future__ import annotations

RULE = "accumulation-in-inference"


def test_same_options(lines):
    """Training's options used again."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        options.Training.gradientAccumulation(4)
        i = poptorch.inferenceModel(model, options)
    """
    assert lines(RULE, code) == [7]
    assert lines(RULE, code.replace("i = ", "print(").replace("(model, options)", "(model, options)(x))")) == [7]


def test_one_or_other_options(lines):
    """A factor of one, and separate options."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        options.Training.gradientAccumulation(4)
        other = poptorch.Options()
        other.Training.gradientAccumulation(1)
        i = poptorch.inferenceModel(model, other)
    """
    assert lines(RULE, code) == []
