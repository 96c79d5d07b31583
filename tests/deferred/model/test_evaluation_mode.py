"""Loops that go backward in evaluation mode: gradients with running statistics and without dropout, as in PyTorch."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ignite_ipu import IPUConfig, backend, ipu_prepare
from ignite_ipu.deferred import CaptureError, EarlyReadError, captured

_DATA = torch.Generator().manual_seed(1)
XS, YS = torch.randn(3, 6, 5, generator=_DATA), torch.randint(0, 3, (3, 6), generator=_DATA)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3))
    model = nn.Sequential(*layers)
    model[1].running_mean.uniform_(-1, 1), model[1].running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    return model


Loop = Callable[[nn.Sequential, torch.optim.Optimizer, List[Any]], None]


def outcome(loop: Loop, update: Optional[str]) -> Any:
    """Return everything that a loop has seen and the trained state, eagerly if `update` is None."""
    model = network().eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if update is not None:
        ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    seen: List[Any] = []
    loop(model, optimizer, seen)
    return seen, dict(model.state_dict())


def fine_tuning(model: nn.Sequential, optimizer: torch.optim.Optimizer, seen: List[Any]) -> None:
    for x, y in zip(XS, YS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())


def values_before_backward(model: nn.Sequential, optimizer: torch.optim.Optimizer, seen: List[Any]) -> None:
    for x, y in zip(XS, YS):
        optimizer.zero_grad()
        scores = model(x)
        seen.append((scores.argmax(1) == y).float().mean().item())
        loss = F.cross_entropy(scores, y)
        seen.append(loss.item())
        loss.backward()
        seen.append(loss.item())
        optimizer.step()


def validation_with_gradients_enabled(model: nn.Sequential, optimizer: torch.optim.Optimizer, seen: List[Any]) -> None:
    for x, y in zip(XS, YS):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        scores = model(XS[0])
        seen += [F.cross_entropy(scores, YS[0]).item(), scores[scores.argmax(1) == 0].detach().sum(), scores.detach()]


def a_value_that_is_read_after_the_update(
    model: nn.Sequential, optimizer: torch.optim.Optimizer, seen: List[Any]
) -> None:
    for x, y in zip(XS, YS):
        optimizer.zero_grad()
        before = model(XS[0])
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        seen.append(before.sum().item())


def training_mode_between_backward_and_step(
    model: nn.Sequential, optimizer: torch.optim.Optimizer, seen: List[Any]
) -> None:
    for x, y in zip(XS, YS):
        model.eval()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        model.train()
        seen.append(model[0].weight.grad.clone())  # type: ignore[union-attr]
        optimizer.step()


def gradients_that_are_cleared(model: nn.Sequential, optimizer: torch.optim.Optimizer, seen: List[Any]) -> None:
    """As an attack does that looks at the sign of a gradient in evaluation mode before each step in training mode."""
    for x, y in zip(XS, YS):
        model.eval()
        F.cross_entropy(model(x), y).backward()
        seen.append(model[4].bias.grad.sign())  # type: ignore[union-attr]
        optimizer.zero_grad()
        model[:3].train()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def a_part_in_training_mode(model: nn.Sequential, optimizer: torch.optim.Optimizer, seen: List[Any]) -> None:
    model[1].train()
    fine_tuning(model, optimizer, seen)


def code_that_asks_for_gradients(model: nn.Sequential, optimizer: torch.optim.Optimizer, seen: List[Any]) -> None:
    model[0].register_forward_hook(lambda module, inputs, output: output * (2 if torch.is_grad_enabled() else 3))
    values_before_backward(model, optimizer, seen)
    with torch.no_grad():
        seen.append(model(XS[0]).sum().item())


LOOPS = (
    *(fine_tuning, values_before_backward, validation_with_gradients_enabled, a_value_that_is_read_after_the_update),
    *(training_mode_between_backward_and_step, gradients_that_are_cleared, a_part_in_training_mode),
    code_that_asks_for_gradients,
)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_in_evaluation_mode(loop: Loop, update: str) -> None:
    """Each sees eager PyTorch's values, and trains its weights."""
    if update == "device" and loop is gradients_that_are_cleared:
        return  # the gradients of an update are looked at, and none follows
    found, expected = outcome(loop, update), outcome(loop, None)
    counts = "1.num_batches_tracked"
    found[1].pop(counts), expected[1].pop(counts)
    if loop is a_part_in_training_mode:
        # The gradient of a bias before such a normalisation is rounding, of which Adam makes whole updates.
        found[1].pop("0.bias"), expected[1].pop("0.bias")
        found[1].pop("1.running_mean"), expected[1].pop("1.running_mean")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_forward_of_a_training_loop_runs_once() -> None:
    """An inference program makes the first call alone; from the second update on the training program does."""
    model = network().eval()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for _ in range(2):
        fine_tuning(model, optimizer, [])
    loop = captured(model)
    assert loop is not None and loop.compilations == 1
    (program,) = loop.session.evaluations
    assert backend.poptorch().counters(program.executor).device_calls == 1


@pytest.mark.parametrize("update", ["device", "host"])
def test_an_encoder_in_evaluation_mode_is_trained_with_its_head(update: str) -> None:
    found = []
    for captures in (False, True):
        torch.manual_seed(1)
        encoder, head = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).eval(), nn.Linear(4, 3)
        optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
        if captures:
            ipu_prepare(optimizer, encoder, head, config=IPUConfig(update=update))
        losses = []
        for x, y in zip(XS, YS):
            optimizer.zero_grad()
            loss = F.cross_entropy(head(encoder(x)), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append((losses, [each.detach().clone() for each in (*encoder.parameters(), *head.parameters())]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return 2 * gradients[0]


def test_gradients_that_would_get_lost_are_refused() -> None:
    """A function with a backward pass of its own, and one that checks values, are no part of a step."""
    model = network().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # as long as it lives, outputs may go backward
    ipu_prepare(optimizer, model)
    scores = model(XS[0])
    with pytest.raises(CaptureError, match=r"Doubled is an autograd\.Function"):
        Doubled.apply(scores)  # type: ignore[no-untyped-call]
    variances, targets = torch.ones(6, 3), torch.zeros(6, 3)
    likelihood = F.gaussian_nll_loss(scores, targets, variances)
    torch.testing.assert_close(likelihood.detach(), F.gaussian_nll_loss(scores.detach(), targets, variances))
    with pytest.raises(CaptureError, match=r"A backward pass reached a result of gaussian_nll_loss .*values"):
        likelihood.backward()  # type: ignore[no-untyped-call]
    with pytest.raises(CaptureError, match=r"requires gradients, but it is no part of the captured model"):
        (scores.sum() + likelihood).backward()


@pytest.mark.parametrize("update", ["device", "host"])
def test_modes_of_parts_before_their_first_update_count(update: str) -> None:
    """A generator that is called in evaluation mode, and put in training mode before the loss joins it with others."""
    found = []
    for captures in (False, True):
        torch.manual_seed(1)
        encoder, head = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)), nn.Linear(4, 3)
        optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
        if captures:
            ipu_prepare(optimizer, encoder, head, config=IPUConfig(update=update))
        hidden = encoder.eval()(XS[0])
        encoder.train()
        loss = F.cross_entropy(head(hidden), YS[0])
        loss.backward()
        optimizer.step()
        found.append((loss.item(), [each.detach().clone() for each in (*encoder.parameters(), *head.parameters())]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


Draw = Callable[[torch.Tensor], torch.Tensor]
SAMPLES: List[Draw] = [
    lambda scores: torch.distributions.Categorical(logits=scores).sample(),
    lambda scores: torch.multinomial(scores.softmax(-1), 2, replacement=True),
    lambda scores: torch.bernoulli(scores.detach().sigmoid()),
    lambda scores: scores + torch.randn_like(scores),
]


def acting(draw: Draw, update: Optional[str]) -> List[torch.Tensor]:
    """Return samples that a loop reads before their loss goes backward, and the weights in the end."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if update is not None:
        ipu_prepare(optimizer, model, config=IPUConfig(update=update))  # type: ignore[arg-type]
    found: List[torch.Tensor] = []
    for _ in range(4):
        optimizer.zero_grad()
        scores = model(torch.ones(5, 3))
        sample = draw(scores)
        found.append(torch.tensor(sample.tolist()))
        (scores.square().mean() * sample.detach().float().mean()).backward()
        optimizer.step()
    return [*found, *[parameter.detach().clone() for parameter in model.parameters()]]


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("draw", SAMPLES)
def test_samples_are_drawn_as_in_pytorch(draw: Draw, update: str) -> None:
    """The host draws them from values of an inference program, in each update alike."""
    torch.testing.assert_close(acting(draw, update), acting(draw, None), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("draw", [F.dropout, F.dropout1d, F.gumbel_softmax])
def test_a_sample_that_gradients_flow_through_is_refused_by_name(draw: Draw) -> None:
    """Its draws are those of the update that gradients come with."""
    by = rf"\(by {draw.__name__} at .*mode\.py:\d+\)"
    with pytest.raises(EarlyReadError, match=rf"it was sampled from the model's output {by}"):
        acting(lambda scores: draw(scores), "device")
