"""PopTorch code: state dictionaries of torch optimizers are reported."""

from __future__ import annotations

RULE = "native-optimizer-state"


def test_torch_optimizer(lines):
    """Its moments stay on the device."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        t = poptorch.trainingModel(model, options, optimizer)
        optimizer.state_dict()
    """
    assert lines(RULE, code) == [7]


def test_poptorch_optimizer(lines):
    """PopTorch's own reads the device."""
    code = """
        import poptorch
        import torch
        model = torch.nn.Linear(4, 2)
        options = poptorch.Options()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        t = poptorch.trainingModel(model, options, optimizer)
        optimizer.state_dict()
    """
    assert lines(RULE, code) == []
