"""Losses that are no means are reported where a model is trained with them."""

from __future__ import annotations

RULE = "loss-reduction"


def test_modules_and_functions(lines):
    """A loss that sums itself."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss(reduction="sum")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    """
    assert lines(RULE, code) == [4]


def test_evaluation_sums_freely(lines):
    """A summed loss under no_grad is a statistic."""
    code = """
        import torch
        from torch import nn
        model = nn.Linear(4, 2)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            total = nn.functional.cross_entropy(a, b, reduction='sum')
    """
    assert lines(RULE, code) == []


def test_no_training(lines):
    """A file that does not train may define what it likes."""
    code = """
        from torch import nn
        l = nn.MSELoss(reduction='sum')
    """
    assert lines(RULE, code) == []


STEP = """
import torch
from torch import nn
from torch.nn import functional as F
model, criterion = nn.Linear(4, 2), None
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def loss_fn(output, y):
    error = -(F.log_softmax(output, 1) * y).sum()
    return error
class Scaled(nn.Module):
    def forward(self, output, y):
        return 0.5 * torch.sum((output - y) ** 2)
scaled = Scaled()
for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    LOSS
    loss.backward()
    optimizer.step()
"""


def test_sums_written_out(lines):
    """Of the batch: by a method or a function, as a term, in a function, in a loss module, in several statements."""
    for loss, line in (
        ("loss = ((output - y) ** 2).sum()", 16),
        ("loss = F.mse_loss(output, y) + 0.1 * torch.sum(output.abs())", 16),
        ("loss = loss_fn(output, y)", 7),
        ("loss = scaled(output, y)", 11),
        ("loss = 0; loss += (output - y).abs().sum()", 16),
    ):
        assert lines(RULE, STEP.replace("LOSS", loss)) == [line]


def test_sums_that_are_none_of_the_batch(lines):
    """Means written out, sums over classes, penalties on weights, statistics."""
    for loss in (
        "loss = ((output - y) ** 2).sum() / len(x)",
        "loss = (output - y).pow(2).sum(dim=1).mean()",
        "loss = F.cross_entropy(output, y, reduction='none').mean()",
        "weights = F.cross_entropy(output, y, reduction='none'); loss = (weights * y).mean()",
        "loss = F.mse_loss(output, y) + 0.1 * model.weight.abs().sum()",
        "loss = F.mse_loss(output, y) + sum(p.pow(2).sum() for p in model.parameters())",
        "loss = F.mse_loss(output, y); right = (output.argmax(1) == y).sum()",
    ):
        assert lines(RULE, STEP.replace("LOSS", loss)) == []
