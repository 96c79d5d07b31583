"""Model calls under no_grad in evaluation mode are reported as notes."""

from __future__ import annotations

RULE = "hand-written-evaluation"


def test_loops_and_decorators(lines):
    """With blocks and decorated functions."""
    code = """
        import torch
        model = torch.nn.Linear(2, 2)
        def evaluate(loader):
            model.eval()
            with torch.no_grad():
                return [model(x) for x in loader]
        @torch.inference_mode()
        def predict(x):
            model.eval()
            return model(x)
    """
    assert lines(RULE, code) == [6, 10]


def test_not_evaluation(lines):
    """Without eval(), or with gradients, it is something else."""
    code = """
        import torch
        model = torch.nn.Linear(2, 2)
        y = model(x)
        with torch.no_grad():
            z = model(x)
    """
    assert lines(RULE, code) == []
