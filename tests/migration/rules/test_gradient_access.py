"""Uses of gradients on the host are reported."""

from __future__ import annotations

import pytest

from ignite_ipu.migration.findings import Outcome

RULE = "gradient-access"


def test_reads_hooks_and_retained_graphs(lines):
    """grad attributes, hooks, autograd.grad, retain_graph."""
    code = """
        import torch
        n = p.grad.norm()
        p.register_hook(print)
        torch.autograd.grad(y, x)
        loss.backward(retain_graph=True)
    """
    assert lines(RULE, code) == [2, 3, 4, 5]


def test_other_grads(lines):
    """Names that only look alike."""
    code = """
        import torch
        with torch.no_grad(): pass
        x.requires_grad_(False)
        optimizer.zero_grad()
    """
    assert lines(RULE, code) == []


def test_flags_that_settings_turn_on(lines):
    """create_graph by a variable or by its position; one that is off is left out."""
    code = """
        import torch
        again, once = True, False
        loss.backward(create_graph=again)
        loss.backward(None, again)
        loss.backward(create_graph=once)
    """
    assert lines(RULE, code) == [3, 4]


def test_a_loss_without_weights_is_the_loop_s_code(lines):
    """As virtual adversarial training, which asks for the gradient of a disturbance; a model's forward is traced."""
    code = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__(); self.layer = nn.Linear(4, 2)
            def forward(self, x):
                return self.layer(x) + x.grad

        class AdversarialLoss(nn.Module):
            def forward(self, model, x):
                d = torch.zeros_like(x).requires_grad_()
                model(x + d).sum().backward()
                return model(x + d.grad).mean()

        model, criterion = Net(), AdversarialLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in data:
            optimizer.zero_grad()
            criterion(model, x).backward()
            optimizer.step()
    """
    assert lines(RULE, code) == [14]


@pytest.mark.parametrize(
    ("adapted", "outcome"),
    [
        ("[p - 0.1 * g for p, g in zip(fast, gradients)]", Outcome.REFUSED),
        ("list(map(lambda p: p[1] - 0.1 * p[0], zip(gradients, fast)))", Outcome.REFUSED),
        ("list(map(lambda p, g: p.sub(0.1 * g), fast, gradients))", Outcome.REFUSED),
        ("list(fast)", Outcome.ON_HOST),
        ("[p.detach() - 0.1 * g for p, g in zip(fast, gradients)]", Outcome.ON_HOST),
    ],
)
def test_gradients_with_respect_to_values_that_are_computed_from_weights(adapted, outcome, findings):
    """As in MAML of first order, whose loop computes the weights of a task. Gradients of weights come to the host."""
    code = f"""
        import torch
        from torch.nn import functional as F
        model = Learner()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for x, y in data:
            fast = list(model.parameters())
            gradients = torch.autograd.grad(F.mse_loss(model(x, fast), y), fast)
            fast = {adapted}
            gradients = torch.autograd.grad(F.mse_loss(model(x, fast), y), fast)
            optimizer.zero_grad()
            F.mse_loss(model(x, fast), y).backward()
            optimizer.step()
    """
    found = [(each.line, each.run) for each in findings(RULE, code)]
    assert (7, Outcome.REFUSED) not in found
    assert ((9, Outcome.REFUSED) in found) == (outcome is Outcome.REFUSED)
