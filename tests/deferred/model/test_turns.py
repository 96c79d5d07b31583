"""Several optimizers that step in turns: adversarial networks, actors and critics, and parts of one model."""

from __future__ import annotations

import copy
import logging
from typing import Any, Callable, Dict, List, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Engine
from torch import nn

from ignite_ipu import IPUConfig, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.deferred.model.capturing import captured
from ignite_ipu.errors import CaptureError
from ignite_ipu.session.hooks import IPUEvents
from ignite_ipu.session.session import IPUSession

Loop = Callable[..., List[float]]
ONES, ZEROS = torch.ones(6, 1), torch.zeros(6, 1)
STEPS = 6
listening: List[Engine] = []
bce = F.binary_cross_entropy_with_logits


def networks(kind: str) -> Tuple[nn.Module, nn.Module]:
    """Return a generator from 4 numbers to 8, and a discriminator of these."""
    torch.manual_seed(0)
    spectral: Any = torch.nn.utils.spectral_norm if kind == "spectral" else lambda layer: layer
    norm: Any = nn.BatchNorm1d if kind == "norm" else lambda size: nn.Identity()
    bias = kind != "norm"
    generator = nn.Sequential(spectral(nn.Linear(4, 16, bias)), norm(16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh())
    discriminator = nn.Sequential(spectral(nn.Linear(8, 16, bias)), norm(16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    return generator, discriminator


def optimizers(generator: nn.Module, discriminator: nn.Module) -> Tuple[Any, Any]:
    return (
        torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.999)),
        torch.optim.SGD(discriminator.parameters(), lr=1e-2, momentum=0.9),
    )


def values(*models: nn.Module) -> List[Dict[str, torch.Tensor]]:
    return [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in models]


def trained(loop: Loop, kind: str, prepared: bool) -> Tuple[List[float], Any]:
    models = networks(kind)
    both = optimizers(*models)
    if prepared:
        for optimizer, model in zip(both, models):
            ipu_prepare(optimizer, model)
    torch.manual_seed(1)
    found = loop(*models, *both)
    states = [[list(entries.values()) for entries in each.state_dict()["state"].values()] for each in both]
    return found, (values(*models), states)


def check_native(loop: Loop, kind: str = "norm") -> None:
    """Check that losses, weights, statistics and the optimizers' states are those of PyTorch."""
    expected, found = trained(loop, kind, False), trained(loop, kind, True)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-6)


def discriminator_first(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train as PyTorch's DCGAN example: two losses go backward, values are read in between, `fake` is used twice."""
    found = []
    for _ in range(STEPS):
        D.zero_grad()
        output = D(torch.randn(6, 8))
        loss_real = bce(output, ONES)
        loss_real.backward()
        found.append(output.mean().item())
        fake = G(torch.randn(6, 4))
        output = D(fake.detach())
        loss_fake = bce(output, ZEROS)
        loss_fake.backward()
        found.append(output.mean().item())
        loss_D = loss_real + loss_fake
        step_D.step()
        G.zero_grad()
        output = D(fake)
        loss_G = bce(output, ONES)
        loss_G.backward()
        found.append(output.mean().item())
        step_G.step()
        found += [loss_D.item(), loss_G.item()]
    return found


def read_before_backward(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train as Ignite's DCGAN example, which reads before backward."""
    found = []
    for _ in range(STEPS):
        D.zero_grad()
        output = D(torch.randn(6, 8))
        loss_real = bce(output, ONES)
        found.append(output.mean().item())
        loss_real.backward()
        fake = G(torch.randn(6, 4))
        output = D(fake.detach())
        loss_fake = bce(output, ZEROS)
        found.append(output.mean().item())
        loss_fake.backward()
        step_D.step()
        G.zero_grad()
        output = D(fake)
        loss_G = bce(output, ONES)
        found.append(output.mean().item())
        loss_G.backward()
        step_G.step()
        found += [(loss_real + loss_fake).item(), loss_G.item()]
    return found


def generator_first(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    found = []
    for _ in range(STEPS):
        step_G.zero_grad()
        made = G(torch.randn(6, 4))
        loss_G = bce(D(made), ONES)
        loss_G.backward()
        step_G.step()
        step_D.zero_grad()
        loss_D = (bce(D(torch.randn(6, 8)), ONES) + bce(D(made.detach()), ZEROS)) / 2
        loss_D.backward()
        step_D.step()
        found += [loss_G.item(), loss_D.item()]
    return found


def several_of_one(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train a critic thrice for each step of the generator."""
    found = []
    for number in range(STEPS):
        step_D.zero_grad()
        loss_D = D(G(torch.randn(6, 4)).detach()).mean() - D(torch.randn(6, 8)).mean()
        loss_D.backward()
        step_D.step()
        found.append(loss_D.item())
        if number % 3 == 0:
            step_G.zero_grad()
            loss_G = -D(G(torch.randn(6, 4))).mean()
            loss_G.backward()
            step_G.step()
            found.append(loss_G.item())
    return found


def frozen_in_turns(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train as pix2pix: the discriminator is frozen for the generator's step, one loss of which needs no network."""
    found = []
    for _ in range(STEPS):
        wanted = torch.randn(6, 8)
        fake = G(torch.randn(6, 4))
        distance = F.l1_loss(fake, wanted)
        for parameter in D.parameters():
            parameter.requires_grad = True
        step_D.zero_grad()
        loss_D = (bce(D(fake.detach()), ZEROS) + bce(D(wanted), ONES)) * 0.5
        loss_D.backward()
        step_D.step()
        for parameter in D.parameters():
            parameter.requires_grad = False
        step_G.zero_grad()
        loss_G = bce(D(fake), ONES) + 10 * distance + F.mse_loss(fake, wanted)
        loss_G.backward()
        step_G.step()
        found += [loss_D.item(), loss_G.item(), distance.item()]
    return found


def not_detached(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train by a discriminator's loss that goes backward through the generator, too."""
    found = []
    for _ in range(STEPS):
        fake = G(torch.randn(6, 4))
        step_D.zero_grad()
        loss_D = bce(D(fake), ZEROS) + bce(D(torch.randn(6, 8)), ONES)
        loss_D.backward(retain_graph=True)
        step_D.step()
        step_G.zero_grad()
        loss_G = bce(D(fake), ONES)
        loss_G.backward()
        step_G.step()
        found += [loss_D.item(), loss_G.item()]
    return found


def actor_and_critic(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train two losses that read each other's detached values; both go backward before both step."""
    found = []
    for _ in range(STEPS):
        for optimizer in (step_G, step_D):
            optimizer.zero_grad()
        action, value = G(torch.randn(6, 4)), D(torch.randn(6, 8))
        reward = action.mean(1, keepdim=True)
        actor = (action.pow(2).mean(1, keepdim=True) * (reward - value).detach()).mean()
        critic = F.mse_loss(value, reward.detach())
        actor.backward()
        critic.backward()
        for optimizer in (step_G, step_D):
            optimizer.step()
        found += [actor.item(), critic.item()]
    return found


def one_loss(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train an encoder and a head by one loss."""
    found = []
    for number in range(STEPS):
        for optimizer in (step_G, step_D):
            optimizer.zero_grad()
        loss = F.mse_loss(D(G(torch.randn(6, 4))), torch.rand(6, 1))
        loss.backward()
        for optimizer in (step_G, step_D) if number % 2 else (step_D, step_G):
            optimizer.step()
        found.append(loss.item())
    return found


def with_everything(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train with schedules, clipping, evaluations, and a checkpoint that is loaded again."""
    schedules = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (step_G, step_D)]
    clip: Any = ipu_clip_grad_norm_ if captured(G) is not None else nn.utils.clip_grad_norm_
    fixed, found = torch.randn(6, 4), []
    kept: Any = None
    for number in range(STEPS):
        step_D.zero_grad()
        fake = G(torch.randn(6, 4))
        loss_D = bce(D(fake.detach()), ZEROS) + bce(D(torch.randn(6, 8)), ONES)
        loss_D.backward()
        step_D.step()
        step_G.zero_grad()
        loss_G = bce(D(fake), ONES)
        loss_G.backward()
        clip(G.parameters(), 0.05)
        step_G.step()
        for schedule in schedules:
            schedule.step()
        found += [loss_D.item(), loss_G.item(), step_G.param_groups[0]["lr"]]
        G.eval()
        with torch.no_grad():
            found.append(G(fixed).abs().sum().item())
        G.train()
        if number == 1:
            kept = copy.deepcopy([each.state_dict() for each in (G, D, step_G, step_D)])
        if number == 3:
            for each, state in zip((G, D, step_G, step_D), kept):
                each.load_state_dict(state)
    return found


LOOPS = [
    *(discriminator_first, read_before_backward, generator_first, several_of_one, frozen_in_turns, not_detached),
    *(actor_and_critic, one_loss, with_everything),
]


@pytest.mark.parametrize("loop", LOOPS)
def test_loops_train_to_native_numbers(loop: Loop) -> None:
    """Losses, weights, statistics and optimizer states are PyTorch's, whatever two programs compute both."""
    check_native(loop)


@pytest.mark.parametrize("loop", [frozen_in_turns, discriminator_first, read_before_backward])
def test_layers_that_read_what_they_write(loop: Loop) -> None:
    """A spectral norm goes on where the step before left it, once for each call, though two programs make that call.

    The host replays earlier calls for values that are read before the update.
    """
    check_native(loop, "spectral")


def test_gradients_of_another_step_that_nobody_clears() -> None:
    """They are part of the next update, as in PyTorch."""

    def loop(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
        found = []
        for _ in range(STEPS):
            step_D.zero_grad()
            step_G.zero_grad()
            loss_G = bce(D(G(torch.randn(6, 4))), ONES)
            loss_G.backward()
            step_G.step()
            loss_D = bce(D(torch.randn(6, 8)), ONES)
            loss_D.backward()
            step_D.step()
            found += [loss_G.item(), loss_D.item()]
        return found

    check_native(loop, "plain")
    check_native(loop, "norm")


@pytest.mark.parametrize("update", ["device", "auto"])
def test_a_step_of_one_shows_whether_the_other_has_gradients(update: str) -> None:
    """The loss's targets are made of results, by an operation without gradients that the update has computed."""

    def loop(update: str) -> List[bool]:
        G, D = networks("plain")
        both = optimizers(G, D)
        for optimizer, model in zip(both, (G, D)) if update != "eager" else ():
            ipu_prepare(optimizer, model, config={"update": update})
        scores = D(G(torch.randn(6, 4)))
        bce(scores, torch.zeros_like(scores)).backward()
        both[1].step()
        return [each.grad is None for each in (*G.parameters(), *D.parameters())]

    assert loop(update) == loop("eager")


def test_two_optimizers_of_one_model() -> None:
    """Parts of one model may have optimizers of their own, without a weight in common."""

    def loop(*prepared: bool) -> Any:
        model = nn.Sequential(*networks("norm"))
        both = optimizers(model[0], model[1])
        if prepared:
            ipu_prepare(both[0], model)
            ipu_prepare(both[1], model)
        torch.manual_seed(1)
        losses = []
        for _ in range(STEPS):
            loss = F.mse_loss(model(torch.randn(6, 4)), torch.rand(6, 1))
            loss.backward()
            for optimizer in both:
                optimizer.step()
            for optimizer in both:
                optimizer.zero_grad()
            losses.append(loss.item())
        return losses, values(model)

    torch.testing.assert_close(loop(True), loop(), rtol=1e-5, atol=1e-6)


def test_weights_move_once_for_each_turn() -> None:
    """A program that goes on moves nothing; one whose turn it is gets the weights, by way of the host."""
    copies: List[str] = []

    def loop(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
        for number in range(12):
            copies.append("")
            step_D.zero_grad()
            (D(G(torch.randn(6, 4)).detach()).mean() - D(torch.randn(6, 8)).mean()).backward()
            step_D.step()
            if number % 4 == 3:
                copies.append("")
                step_G.zero_grad()
                (-D(G(torch.randn(6, 4))).mean()).backward()
                step_G.step()
            if number == 3:
                # Both programs are on their IPUs.
                listen(captured(G).session, copies)  # type: ignore[union-attr]
                copies.clear()
        return []

    trained(loop, "norm", True)
    # The generator's step brings the buffers to the host: the discriminator's may be of the same calls.
    assert copies == [">", "", "", "", "<><"] * 2


def listen(session: IPUSession, copies: List[str]) -> None:
    """Add a sign to the last entry for each copy of weights to the host or to a device."""
    engine = Engine(lambda engine, batch: None)
    session.hooks.listen(engine)
    listening.append(engine)
    for event, sign in ((IPUEvents.WEIGHTS_TO_HOST, "<"), (IPUEvents.WEIGHTS_TO_DEVICE, ">")):
        engine.add_event_handler(event, lambda engine, sign=sign: copies.append(copies.pop() + sign))


def test_dropout_in_both_programs_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """The second program draws anew, and training goes on."""

    def loop(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
        return generator_first(G, D, step_G, step_D) + discriminator_first(G, D, step_G, step_D)

    G, D = networks("norm")
    G = nn.Sequential(G, nn.Dropout(0.5))
    both = optimizers(G, D)
    for optimizer, model in zip(both, (G, D)):
        ipu_prepare(optimizer, model)
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        generator_first(G, D, *both)
        assert "draws random numbers anew" not in caplog.text
        discriminator_first(G, D, *both)
    assert caplog.text.count("draws random numbers anew") == 1


def test_weights_that_changed_before_the_update_are_refused() -> None:
    """Operations whose weights another optimizer has updated since cannot be computed again; PyTorch refuses, too."""

    def loop(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
        for _ in range(2):
            loss_G = bce(D(G(torch.randn(6, 4))), ONES)
            step_D.zero_grad()
            bce(D(torch.randn(6, 8)), ONES).backward()
            step_D.step()
            step_G.zero_grad()
            loss_G.backward()
            step_G.step()
        return []

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trained(loop, "plain", False)
    with pytest.raises(CaptureError, match=r"was computed at .*test_turns\.py:\d+, and its weights have been"):
        trained(loop, "plain", True)


def looked_at(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
    """Train as Ignite's DCGAN example, which looks at generated batches with gradients, and keeps none."""
    found = []
    for number in range(3):
        found += discriminator_first(G, D, step_G, step_D)
        for _ in range(number):
            sample = G(torch.randn(6, 4))
            found.append(sample.mean().item())
            del sample
        G.eval()
        found.append(G(torch.ones(6, 4)).mean().item())
        G.train()
        G(torch.randn(6, 4))
    return found


def test_statistics_of_calls_that_no_update_is_of() -> None:
    """Such calls are made on the host, before their buffers are read: in an update, or an evaluation."""
    (native, _), (ipu, _) = [trained(looked_at, "norm", captures) for captures in (False, True)]
    assert ipu == pytest.approx(native, rel=1e-4)


def test_a_loss_from_before_a_step_goes_backward_after_its_model_has_joined_another() -> None:
    """The gradients are made again with the weights of both models at the time of the loss."""
    torch.manual_seed(0)
    inputs, labels = torch.randn(3, 4, 3), torch.randint(0, 2, (3, 4))

    def gradients(prepared: bool) -> List[torch.Tensor]:
        torch.manual_seed(1)
        models = [nn.Linear(3, 3), nn.Linear(3, 2), nn.Linear(3, 2)]
        steps = [torch.optim.SGD(model.parameters(), lr=0.5) for model in models]
        for step, model in zip(steps, models) if prepared else ():
            ipu_prepare(step, model, config={"update": "auto"})
        encoder, one, other = models
        F.cross_entropy(one(encoder(inputs[0])), labels[0]).backward()
        early = F.cross_entropy(other(inputs[1]), labels[1])
        steps[0].step()
        steps[1].step()
        F.cross_entropy(other(encoder(inputs[2])), labels[2]).backward()
        early.backward()  # type: ignore[no-untyped-call]
        steps[2].step()
        return [
            parameter.grad.clone() for model in models for parameter in model.parameters() if parameter.grad is not None
        ]

    for found, native in zip(gradients(True), gradients(False)):
        torch.testing.assert_close(found, native, rtol=1e-4, atol=1e-6)


class Classifier(nn.Module):
    """A classifier upon the encoder of another model."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.encoder(x))
        return scores


class Pretraining:
    """An encoder and its decoder that Adam trains, and `beside` them a third model with a loss of both."""

    def __init__(self, beside: bool, update: Optional[str]) -> None:
        torch.manual_seed(0)
        # A bias before batch normalisation has gradients of rounding alone, which Adam makes steps of.
        self.encoder = nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU())
        self.coder, self.noise = nn.Sequential(self.encoder, nn.Linear(5, 4)), nn.Linear(4, 4)
        self.first = torch.optim.Adam(self.coder.parameters(), lr=0.01)
        self.third = torch.optim.SGD(self.noise.parameters(), lr=0.1)
        self.beside = beside
        for each in (self.coder, self.first, self.noise, self.third) if update is not None else ():
            ipu_prepare(each, config=IPUConfig(update=update))
        for _ in range(3):
            self.train()

    def train(self) -> None:
        x = torch.randn(6, 4)
        F.mse_loss(self.coder(x), x).backward()
        self.first.step()
        self.first.zero_grad()
        if self.beside:
            F.mse_loss(self.coder(self.noise(x)), x).backward()
            self.third.step()
            self.third.zero_grad()


def fine_tuned(kind: str, clears_first: bool, update: Optional[str]) -> Any:
    """Return losses, weights and optimizers' states of a classifier upon a trained encoder; None is plain PyTorch."""
    before = Pretraining(kind.endswith("third"), update)
    model, coder, first = Classifier(before.encoder), before.coder, before.first
    before.encoder.requires_grad_(kind != "head alone")
    second = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1, momentum=0.9)
    if update is not None:
        ipu_prepare(model, second, config=IPUConfig(update=update))
    seen: List[Any] = []
    for _ in range(3):
        x, y = torch.randn(6, 4), torch.randint(0, 3, (6,))
        loss = F.cross_entropy(model(x), y)
        if kind == "of one loss":
            loss = loss + F.mse_loss(coder(x), x)
        if clears_first:
            second.zero_grad()
        loss.backward()
        second.step()
        if kind == "of one loss":
            first.step()
            first.zero_grad()
        if not clears_first:
            second.zero_grad()
        seen.append((loss.item(), values(coder, model)))
        if kind.startswith("in turns"):
            before.train()
    states = [[list(entries.values()) for entries in each.state_dict()["state"].values()] for each in (first, second)]
    return seen, values(coder, model), states


@pytest.mark.parametrize("clears_first", [False, True])
@pytest.mark.parametrize("kind", ["fine-tuned", "in turns", "in turns beside a third", "of one loss", "head alone"])
@pytest.mark.parametrize("update", ["auto", "host"])
def test_an_optimizer_of_a_new_model_with_weights_of_an_older_one(kind: str, clears_first: bool, update: str) -> None:
    """An encoder is trained first, and then a classifier that has its layers."""
    if update == "auto" and clears_first and kind.endswith("third"):
        # The decoder's gradients of the third model's losses are never cleared, and no optimizer holds it any more.
        with pytest.raises(CaptureError, match=r"A gradient is used at .* that is gone"):
            fine_tuned(kind, clears_first, update)
        return
    found, native = fine_tuned(kind, clears_first, update), fine_tuned(kind, clears_first, None)
    torch.testing.assert_close(found, native, rtol=1e-4, atol=1e-6)


def test_two_optimizers_of_a_model_step_in_turns(caplog: pytest.LogCaptureFixture) -> None:
    """Updates move to the host, where no step is compiled again for each turn."""
    found = []
    for prepared in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        steps = [torch.optim.Adam(model.parameters(), lr=0.01), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)]
        if prepared:
            ipu_prepare(model, *steps, config=IPUConfig(update="auto"))
        losses = []
        for number in range(6):
            step = steps[number % 2]
            loss = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(0, 3, (6,)))
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.item())
        found.append((losses, values(model)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
    assert "SGD, Adam update the same weights in turns" in caplog.text
    assert caplog.text.count("is followed by another optimizer") == 1


def test_the_gradient_of_a_weight_that_another_model_has_frozen() -> None:
    """It is that of the loop that has trained the weight."""
    torch.manual_seed(0)
    encoder = nn.Linear(4, 5)
    coder = nn.Sequential(encoder, nn.Linear(5, 4))
    optimizer = torch.optim.SGD(coder.parameters(), lr=0.1)
    ipu_prepare(coder, optimizer, config=IPUConfig(update="auto"))
    x = torch.randn(6, 4)
    twin = copy.deepcopy(coder)
    F.mse_loss(twin(x), x).backward()
    F.mse_loss(coder(x), x).backward()
    optimizer.step()
    encoder.requires_grad_(False)
    model = Classifier(encoder)
    second = torch.optim.SGD(model.head.parameters(), lr=0.1)
    ipu_prepare(model, second)
    F.cross_entropy(model(x), torch.zeros(6, dtype=torch.long)).backward()
    second.step()
    torch.testing.assert_close(encoder.weight.grad, twin[0].weight.grad)


def test_optimizers_with_a_weight_in_common_are_refused() -> None:
    """On the device one weight has one optimizer at a time, and only one other may follow it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    steps = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    both = torch.optim.Adam(model.parameters())
    ipu_prepare(model, *steps)
    ipu_prepare(both)
    for each in steps:
        each.zero_grad()
    with pytest.raises(CaptureError, match="optimizers that hold the same weights, SGD, SGD, Adam"):
        both.zero_grad()


def test_closing_gives_everything_back() -> None:
    """Models and optimizers are ordinary ones again, with the trained weights."""

    def loop(G: nn.Module, D: nn.Module, step_G: Any, step_D: Any) -> List[float]:
        found = discriminator_first(G, D, step_G, step_D)
        capture = captured(G)
        if capture is not None:
            capture.close()
            assert captured(D) is None and type(step_G) is torch.optim.Adam and type(step_D) is torch.optim.SGD
        return found

    check_native(loop)


@pytest.mark.parametrize("reverses", [False, True])
def test_a_value_read_before_the_steps_comes_with_the_one_that_follows(reverses: bool) -> None:
    """Whichever optimizer was met first, the update that runs early is that of the next `step()`."""
    found = []
    for prepared in (False, True):
        torch.manual_seed(0)
        models = nn.Linear(4, 3), nn.Linear(3, 2)
        first, second = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        if prepared:
            first, second = [ipu_prepare(one, model) for one, model in zip((first, second), models)]
        x = torch.randn(8, 4)
        seen = []
        for update in range(4):
            loss = models[1](models[0](x)).pow(2).mean()
            loss.backward()
            seen.append(loss.item())
            first.step()
            second.step()
            first.zero_grad()
            second.zero_grad()
            capture = captured(models[0])
            if capture is not None and reverses and update == 1:
                capture.updates.books.updates.reverse()
        found.append(seen)
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.parametrize("update", ["device", "host"])
def test_a_model_that_is_frozen_between_calls_of_others(update: str) -> None:
    """As CycleGAN does: the generator's first call comes before, its second after the discriminator is frozen."""
    found = []
    for prepared in (False, True):
        G, D = networks("plain")
        step_G, step_D = optimizers(G, D)
        if prepared:
            ipu_prepare(step_G, G, config=IPUConfig(update=update))
            ipu_prepare(step_D, D, config=IPUConfig(update=update))
        losses = []
        for _ in range(STEPS):
            real = torch.randn(6, 4)
            fake = G(real)
            D.requires_grad_(False)
            step_G.zero_grad()
            loss_G = bce(D(fake), ONES) + G(real + 0.1).square().mean()
            loss_G.backward()
            step_G.step()
            D.requires_grad_(True)
            step_D.zero_grad()
            loss_D = bce(D(torch.randn(6, 8)), ONES) + bce(D(fake.detach()), ZEROS)
            loss_D.backward()
            step_D.step()
            losses += [loss_G.item(), loss_D.item()]
        found.append([*losses, *(float(each.detach().sum()) for each in (*G.parameters(), *D.parameters()))])
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-6)


def test_a_model_that_is_frozen_between_its_own_calls_is_refused() -> None:
    """PyTorch takes the gradient of the first call alone, which one program cannot."""
    G, D = networks("plain")
    step_G, _ = optimizers(G, D)
    ipu_prepare(step_G, G, config=IPUConfig(update="host"))
    first = G(torch.randn(6, 4))
    G[0].requires_grad_(False)
    with pytest.raises(CaptureError, match=r"called at .* and again .* parameters were frozen or unfrozen"):
        (first + G(torch.randn(6, 4))).sum().backward()
