"""Losses that are no means are reported where a model is trained with them."""

from __future__ import annotations

RULE = "loss-reduction"


TRAINER = """
    from ignite_ipu import create_ipu_trainer
    from torch import nn
    criterion = nn.CrossEntropyLoss({reduction})
    trainer = create_ipu_trainer(model, optimizer, criterion)
    {more}
"""


def test_modules_and_functions(lines):
    """A loss that sums itself."""
    assert lines(RULE, TRAINER.format(reduction='reduction="sum"', more="pass")) == [3]


def test_evaluation_sums_freely(lines):
    """A summed loss under no_grad is a statistic."""
    more = "import torch\n    with torch.no_grad(): total = nn.functional.mse_loss(a, b, reduction='sum')"
    assert lines(RULE, TRAINER.format(reduction="", more=more)) == []


def test_captured_loops(lines):
    """They add gradients up as PyTorch does."""
    code = """
        import torch
        from ignite_ipu import ipu_prepare
        criterion = torch.nn.MSELoss(reduction="sum")
        optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    """
    assert lines(RULE, code) == []


def test_no_training(lines):
    """A file that does not train may define any loss."""
    code = """
        from torch import nn
        l = nn.MSELoss(reduction='sum')
    """
    assert lines(RULE, code) == []


LOSS = """
import torch
from torch import nn
from torch.nn import functional as F
from ignite_ipu import create_ipu_trainer
def error(output, y):
    return (output - y).abs().sum()
class Scaled(nn.Module):
    def forward(self, output, y):
        return 0.5 * torch.sum((output - y) ** 2)
scaled = Scaled()
def loss_fn(output, y):
    LOSS
    return loss
trainer = create_ipu_trainer(model, optimizer, GIVEN)
"""


def found(lines, loss, given="loss_fn"):
    return lines(RULE, LOSS.replace("LOSS", loss).replace("GIVEN", given))


def test_sums_written_out(lines):
    """Of the batch: by a method or a function, as a term, in a function, in a loss module, in several statements."""
    for loss, line in (
        ("loss = ((output - y) ** 2).sum()", 12),
        ("loss = F.mse_loss(output, y) + 0.1 * torch.sum(output.abs())", 12),
        ("loss = error(output, y)", 6),
        ("loss = scaled(output, y)", 9),
        ("loss = 0; loss += (output - y).abs().sum()", 12),
    ):
        assert found(lines, loss) == [line]
    assert found(lines, "loss = 0", "scaled") == [9]


def test_sums_that_are_none_of_the_batch(lines):
    """Means written out, sums over classes, penalties on weights, statistics."""
    for loss in (
        "loss = ((output - y) ** 2).sum() / len(y)",
        "loss = (output - y).pow(2).sum(dim=1).mean()",
        "loss = F.cross_entropy(output, y, reduction='none').mean()",
        "loss = F.mse_loss(output, y) + 0.1 * model.weight.abs().sum()",
        "loss = F.mse_loss(output, y) + sum(p.pow(2).sum() for p in model.parameters())",
        "loss = F.mse_loss(output, y); right = (output.argmax(1) == y).sum()",
    ):
        assert found(lines, loss) == []
