"""Calls of models that PyTorch transforms are reported."""

from __future__ import annotations

RULE = "transformed-model"
LOOP = """
        import torch
        from torch import nn
        from torch.nn.utils import parametrize

        class Even(nn.Module):
            def forward(self, weight):
                return weight + weight.T

        model, loss_fn = nn.Sequential(nn.Linear(4, 4)), nn.MSELoss()
        inner, net = nn.Linear(4, 4), nn.Linear(4, 4)
        parametrize.register_parametrization(inner, "weight", Even())
        optimizer = torch.optim.SGD([*model.parameters(), *inner.parameters()], lr=0.1)

        def energy(weights, x):
            return torch.func.functional_call(model, weights, (x,)).sum()

        for x in batches:
{body}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def test_transforms(lines_in):
    """A model, a function that calls one, and one behind functional_call."""
    body = (
        "loss = torch.vmap(model)(x).mean()",
        "slope = torch.func.jacrev(lambda v: model(v))(x)",
        "loss = loss + torch.func.grad(lambda v: loss_fn(v, x))(x).mean()",
    )
    assert lines_in(RULE, LOOP, *body) == [1, 2]
    assert lines_in(RULE, LOOP, "loss = model(x).mean()", "g = torch.func.grad(energy)(weights, x)") == [-2]


def test_weights(lines_in):
    """Those that are computed for one call; a model's own and unknown ones may be the model's."""
    body = (
        "moved = {name: weight - 0.1 for name, weight in model.named_parameters()}",
        "loss = torch.func.functional_call(model, moved, (x,)).mean()",
        "loss = loss + torch.func.functional_call(net, {'weight': model(x)[:4]}, (x,)).mean()",
        "loss = loss + torch.func.functional_call(model, model.state_dict(), (x,)).mean()",
        "loss = loss + torch.func.functional_call(model, dict(model.named_parameters()), (x,)).mean()",
        "loss = loss + torch.func.functional_call(model, given, (x,)).mean()",
    )
    assert lines_in(RULE, LOOP, *body) == [2, 3, 4]


def test_caches(lines_in):
    """Of parametrized weights, where gradients are recorded."""
    body = (
        "with parametrize.cached():",
        "    loss = inner(x).mean()",
        "    loss = loss + model(x).mean()",
        "    with torch.no_grad():",
        "        seen = inner(x)",
    )
    assert lines_in(RULE, LOOP, *body) == [2]
