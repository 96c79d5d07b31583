"""Several losses of one call of the model, as of an actor and its critic, with values that are read between them."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
from torch import Tensor, nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError

X = torch.randn(7, 8, 4, generator=torch.Generator().manual_seed(5))


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Any:
        hidden = self.trunk(x).tanh()
        return self.actor(hidden), self.critic(hidden)


def reads_the_next(actor: Tensor, critic: Tensor, policy: Tensor, value: Tensor) -> float:
    seen = critic.item()
    critic.backward()  # type: ignore[no-untyped-call]
    return seen


def reads_the_last(actor: Tensor, critic: Tensor, policy: Tensor, value: Tensor) -> float:
    seen = actor.item()
    critic.backward()  # type: ignore[no-untyped-call]
    return seen


def reads_an_output(actor: Tensor, critic: Tensor, policy: Tensor, value: Tensor) -> float:
    seen = value.mean().item()
    critic.backward()  # type: ignore[no-untyped-call]
    return seen


def scales_the_next(actor: Tensor, critic: Tensor, policy: Tensor, value: Tensor) -> float:
    seen = critic.item()
    (critic * 2).backward()
    return seen


def scales_by_an_output(actor: Tensor, critic: Tensor, policy: Tensor, value: Tensor) -> float:
    seen = value.detach().mean().item()
    (critic * seen).backward()
    return seen


def adds_a_term(actor: Tensor, critic: Tensor, policy: Tensor, value: Tensor) -> float:
    term = (policy.softmax(1)[:, 0] - value.detach()[:, 0]).square().mean()
    seen = term.item()
    (critic + term).backward()
    return seen


SECONDS = [reads_the_next, reads_the_last, reads_an_output, scales_the_next, scales_by_an_output, adds_a_term]


def reads_it_alone(actor: Tensor, critic: Tensor, policy: Tensor, value: Tensor) -> float:
    return critic.item()


def train(second: Callable[..., float], update: str = "", alone: int = 0) -> List[Any]:
    """Train with a second loss, but for some updates with the first `alone`; returns the losses and the weights."""
    torch.manual_seed(0)
    model: Any = ActorCritic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    if update:
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    seen = []
    for number, x in enumerate(X):
        policy, value = model(x)
        actor, critic = policy.log_softmax(1)[:, 1].mean(), (value - 1).square().mean()
        optimizer.zero_grad()
        actor.backward(retain_graph=True)
        seen.append((reads_it_alone if number < alone else second)(actor, critic, policy, value))
        optimizer.step()
        seen += [actor.item(), critic.item()]
    return [torch.tensor(seen), *[parameter.detach().clone() for parameter in model.parameters()]]


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("update", ["auto", "device", "host"])
def test_values_are_read_between_two_losses_of_one_call(second: Callable[..., float], update: str) -> None:
    torch.testing.assert_close(train(second, update), train(second), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("second", SECONDS)
@pytest.mark.parametrize("alone", [1, 2, 4])
def test_a_second_loss_follows_where_none_has_followed_before(second: Callable[..., float], alone: int) -> None:
    """The read made the update run, as the updates before were of the first loss alone: it is taken back."""
    expected = train(second, alone=alone)
    for update in ("auto", "host"):
        torch.testing.assert_close(train(second, update, alone), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(CaptureError, match=r"The value read at .* made the update run before optimizer\.step\(\)"):
        train(second, "device", alone)


@pytest.mark.parametrize("update", ["auto", "device", "host"])
def test_a_first_loss_that_retains_its_graph_for_nothing(update: str) -> None:
    """The updates before show that none follows: the read takes one device call, with the update."""
    torch.testing.assert_close(train(reads_it_alone, update), train(reads_it_alone), rtol=1e-4, atol=1e-5)
