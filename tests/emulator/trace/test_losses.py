"""Which operator of a training model is the loss."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch

torch.manual_seed(0)
LOGITS = torch.randn(4, 3)
TARGETS = torch.randn(4, 3)
CLASSES = torch.tensor([0, 2, 1, 1])
SIGNS = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]])
UNIT = TARGETS.sigmoid()


class Scaled(nn.Module):
    """Scales its input by a weight of 2 and hands it to a loss."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.loss = loss

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> Any:
        return self.loss(self.weight * x, *rest)


def trained(loss: Callable[..., Any], *inputs: torch.Tensor) -> Tuple[Any, float]:
    """Return the result of one training call, and the gradient that it used."""
    net = Scaled(loss)
    options = poptorch.Options().outputMode(poptorch.OutputMode.Final)
    executor = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=1.0))
    try:
        result = executor(*inputs)
        return result, 2 - net.weight.item()
    finally:
        executor.destroy()


LOSSES: Dict[str, Tuple[Callable[..., torch.Tensor], Tuple[torch.Tensor, ...]]] = {
    "l1": (F.l1_loss, (LOGITS, TARGETS)),
    "mse": (F.mse_loss, (LOGITS, TARGETS)),
    "cross entropy": (F.cross_entropy, (LOGITS, CLASSES)),
    "nll": (lambda x, y: F.nll_loss(F.log_softmax(x, 1), y), (LOGITS, CLASSES)),
    "bce": (lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), y), (LOGITS, UNIT)),
    "bce with logits": (F.binary_cross_entropy_with_logits, (LOGITS, UNIT)),
    "kl div": (lambda x, y: F.kl_div(F.log_softmax(x, 1), y, reduction="batchmean"), (LOGITS, UNIT)),
    "poisson nll": (F.poisson_nll_loss, (LOGITS, UNIT)),
    "hinge embedding": (F.hinge_embedding_loss, (LOGITS, SIGNS.expand(4, 3).contiguous())),
    "smooth l1": (F.smooth_l1_loss, (LOGITS, TARGETS)),
    "soft margin": (F.soft_margin_loss, (LOGITS, SIGNS.expand(4, 3).contiguous())),
    "cosine embedding": (lambda x, y, s: F.cosine_embedding_loss(x, y, s[:, 0]), (LOGITS, TARGETS, SIGNS)),
    "margin ranking": (lambda x, y, s: F.margin_ranking_loss(x, y, s), (LOGITS, TARGETS, SIGNS)),
    "triplet margin": (lambda x, y: F.triplet_margin_loss(x, y, y.flip(1) if False else y * 2), (LOGITS, TARGETS)),
    "ctc": (
        lambda x, y: F.ctc_loss(
            F.log_softmax(x, 1),
            y[:2],
            torch.full((), 4, dtype=torch.long),
            torch.full((), 2, dtype=torch.long),
        ),
        (LOGITS, torch.tensor([2, 1, 1, 1])),
    ),
    "identity": (lambda x: poptorch.identity_loss(x.square(), "mean"), (LOGITS,)),
    "module": (nn.CrossEntropyLoss(ignore_index=1), (LOGITS, CLASSES)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_recognised_losses(name):
    """Value and gradient are autograd's."""
    loss, inputs = LOSSES[name]
    weight = torch.tensor(2.0, requires_grad=True)
    expected = loss(weight * inputs[0], *inputs[1:])
    expected.backward()
    value, gradient = trained(loss, *inputs)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert gradient == pytest.approx(weight.grad.item(), rel=1e-4, abs=1e-6)


def test_the_loss_need_not_be_returned():
    """Nor stand first."""

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        F.mse_loss(x, y)
        return x * 10

    value, gradient = trained(forward, LOGITS, TARGETS)
    assert torch.allclose(value, LOGITS * 20)
    assert gradient == pytest.approx((2 * (2 * LOGITS - TARGETS) * LOGITS).mean().item(), rel=1e-4)


def test_arithmetic_after_a_loss_is_not_differentiated():
    """The product is returned, the loss is trained on."""
    value, gradient = trained(lambda x, y: F.mse_loss(x, y) * 100, LOGITS, TARGETS)
    plain, plain_gradient = trained(F.mse_loss, LOGITS, TARGETS)
    assert value.item() == pytest.approx(plain.item() * 100) and gradient == plain_gradient


def test_arithmetic_in_place_after_a_loss_is_not_differentiated_either():
    """A write to the loss, by its name or through a view, changes the returned value."""

    def penalised(x, y):
        loss = F.mse_loss(x, y)
        loss += x.square().sum()
        loss.view(1)[0] *= 3
        return loss

    value, gradient = trained(penalised, LOGITS, TARGETS)
    plain, plain_gradient = trained(F.mse_loss, LOGITS, TARGETS)
    assert gradient == plain_gradient
    assert value.item() == pytest.approx(3 * (plain.item() + (2 * LOGITS).square().sum().item()))


def test_a_vector_counts_as_its_sum():
    _, summed = trained(lambda x, y: F.mse_loss(x, y, reduction="sum"), LOGITS, TARGETS)
    vector, gradient = trained(lambda x, y: F.mse_loss(x, y, reduction="none"), LOGITS, TARGETS)
    assert vector.shape == (4, 3) and gradient == pytest.approx(summed, rel=1e-5)


def test_losses_combine_through_identity_loss():
    _, gradient = trained(
        lambda x, y: poptorch.identity_loss(F.mse_loss(x, y) + 3 * F.l1_loss(x, y), "none"), LOGITS, TARGETS
    )
    mse = (2 * (2 * LOGITS - TARGETS) * LOGITS).mean()
    l1 = ((2 * LOGITS - TARGETS).sign() * LOGITS).mean()
    assert gradient == pytest.approx((mse + 3 * l1).item(), rel=1e-4)


def test_no_loss():
    """A mean is none; inference does not ask."""
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph"):
        trained(lambda x: x.mean(), LOGITS)
    executor = poptorch.inferenceModel(Scaled(lambda x: x.mean()))
    assert executor(LOGITS).item() == pytest.approx(2 * LOGITS.mean().item(), rel=1e-5)
    executor.destroy()


def test_two_losses():
    """Even when one is only logged."""

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        return F.mse_loss(x, y), F.l1_loss(x.detach(), y)

    with pytest.raises(poptorch.Error, match="Multiple independent losses found"):
        trained(forward, LOGITS, TARGETS)
    executor = poptorch.inferenceModel(Scaled(forward))
    assert len(executor(LOGITS, TARGETS)) == 2
    executor.destroy()


REFUSED = {
    'Parameter "weight" is unsupported': lambda x, y: F.cross_entropy(x, y, weight=torch.ones(3)),
    "is unsupported: the compiled loss has no class weights": lambda x, y: F.nll_loss(x, y, torch.ones(3)),
    "aten::huber_loss": lambda x, y: F.huber_loss(x, x * 2),
    "is currently not supported": lambda x, y: F.ctc_loss(
        F.log_softmax(x, 1),
        y[:2],
        torch.full((), 4, dtype=torch.long),
        torch.full((), 2, dtype=torch.long),
        reduction="none",
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refused_losses(words):
    with pytest.raises(poptorch.Error, match=words):
        trained(REFUSED[words], LOGITS, CLASSES)


@pytest.mark.skipif(
    torch.__version__.startswith("2.0."), reason="PyTorch 2.0 selects targets that are not ignored, by values"
)
def test_label_smoothing_is_doubted(caplog):
    """It is computed as PyTorch does."""
    value, _ = trained(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.3), LOGITS, CLASSES)
    expected = F.cross_entropy(2 * LOGITS, CLASSES, label_smoothing=0.3)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert "label_smoothing does not compile" in caplog.text


def test_a_composed_loss_is_none():
    """Cross entropy with class probabilities is made of several operators, until identity_loss makes it one."""
    with pytest.raises(poptorch.Error, match=r"Couldn't find a loss in graph.*class probabilities.*identity_loss"):
        trained(F.cross_entropy, LOGITS, TARGETS.softmax(1))
    value, _ = trained(lambda x, y: poptorch.identity_loss(F.cross_entropy(x, y), "none"), LOGITS, TARGETS.softmax(1))
    assert value.item() == pytest.approx(F.cross_entropy(2 * LOGITS, TARGETS.softmax(1)).item(), rel=1e-5)


def test_a_mean_over_the_batch_is_doubted_where_it_is_the_loss(caplog):
    """As PopTorch's sources read, the gradient of kl_div's batchmean is that of the sum, but not of identity_loss."""

    def loss(x, y):
        return F.kl_div(F.log_softmax(x, 1), y, reduction="batchmean")

    trained(lambda x, y: poptorch.identity_loss(loss(x, y), "none"), LOGITS, UNIT)
    assert "gradient of the sum" not in caplog.text
    trained(loss, LOGITS, UNIT)
    assert "gradient of the sum" in caplog.text
