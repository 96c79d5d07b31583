"""Losses from `torch.distributions`: the values that their checks of arguments read are unknown before the step."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Tuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import (
    Bernoulli,
    Categorical,
    ContinuousBernoulli,
    Distribution,
    Geometric,
    Independent,
    MixtureSameFamily,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
    Uniform,
    constraints,
    kl_divergence,
)
from torch.distributions.transforms import TanhTransform, Transform

from ignite_ipu.deferred import EarlyReadError, capture_model, capture_optimizer

X = torch.rand(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, :2] > 0.5).float()
Loss = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _checks() -> Iterator[None]:
    """Check arguments, as PyTorch does by default; importing transformers has turned that off in some versions."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


def network() -> Tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def prepared() -> Tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = network()
    capture_model(model)
    capture_optimizer(optimizer)
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, compute: Loss) -> None:
    for _ in range(3):
        compute(model(X)).backward()
        optimizer.step()
        optimizer.zero_grad()


def normal(scores: torch.Tensor) -> Normal:
    return Normal(scores[:, :2], F.softplus(scores[:, 2:]) + 1e-3)


LOSSES = {
    "likelihood": lambda scores: -normal(scores).log_prob(Y).mean(),
    "reparametrised sample": lambda scores: normal(scores).rsample().square().mean(),
    "evidence lower bound": lambda scores: (
        kl_divergence(normal(scores), Normal(torch.zeros(2), torch.ones(2))).sum(-1).mean()
        - Independent(Bernoulli(logits=scores[:, :2]), 1).log_prob(Y).mean()
    ),
    "entropy": lambda scores: (
        -(Categorical(logits=scores).log_prob(Y[:, 0].long()) + Categorical(probs=scores.softmax(-1)).entropy()).mean()
    ),
    "mixture": lambda scores: (
        -MixtureSameFamily(Categorical(logits=scores[:, :2]), Normal(scores[:, 2:], torch.ones(2)))
        .log_prob(X[:, 0])
        .mean()
    ),
    "transformed": lambda scores: -TransformedDistribution(normal(scores), [TanhTransform()]).log_prob(Y * 0.9).mean(),
    "trials": lambda scores: -Geometric(scores.sigmoid()).log_prob(Y[:, :1]).mean(),
    "shares": lambda scores: -ContinuousBernoulli(scores.sigmoid()).log_prob(X[:, :1]).mean(),
    "bounds": lambda scores: Uniform(scores[:, :2], scores[:, :2] + scores[:, 2:].exp()).rsample().square().mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_train_to_native_weights(name: str) -> None:
    """With the checks of arguments that are on by default; samples are drawn by the loop, on the host."""
    (native, native_optimizer), (model, optimizer) = network(), prepared()
    torch.manual_seed(3)
    train(native, native_optimizer, LOSSES[name])
    torch.manual_seed(3)
    train(model, optimizer, LOSSES[name])
    for mine, theirs in zip(model.parameters(), native.parameters()):
        torch.testing.assert_close(mine, theirs)


def test_shapes_and_values_of_the_host_are_checked() -> None:
    """Values known before the step raise as ever."""
    model, _ = prepared()
    scores = model(X)
    with pytest.raises(ValueError, match="not broadcastable"):
        normal(scores).log_prob(torch.zeros(3, 5))
    with pytest.raises(ValueError, match="to be within the support"):
        Bernoulli(logits=scores[:, :2]).log_prob(Y + 0.5)


def test_checks_are_made_again_once_values_are_known() -> None:
    """As of a captured model's output for an update that has been made."""
    model, optimizer = prepared()
    scores = model(X)
    scores.square().mean().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="Expected parameter scale"):
        Normal(0.0, -scores.square() - 1)


def test_other_checks_are_named_and_can_be_left_out() -> None:
    """Some distributions have more of them."""
    model, _ = prepared()
    covariance = torch.diag_embed(model(X).exp())
    with pytest.raises(EarlyReadError, match=r"distributions.py:\d+ asks .* leave it out with validate_args=False"):
        MultivariateNormal(torch.zeros(4), covariance)


class Asking(Transform):
    """Branches on values, which a distribution asks for among its own."""

    domain = codomain = constraints.real
    bijective = True
    sign = 1

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        return -y if bool(y.mean() > 0) else y

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def test_code_that_a_distribution_calls_may_not_ask() -> None:
    """It is no check, and has no answer."""
    model, _ = prepared()
    scores: Any = model(X)
    with pytest.raises(EarlyReadError, match="asks for a value of the training step"):
        TransformedDistribution(Normal(torch.zeros(4), torch.ones(4)), [Asking()]).log_prob(scores)
