"""Tensors of the host in a forward: constants of the program, unless they are trained or written."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.nn import functional as F

from ignite_ipu import IPUConfig, backend, create_ipu_trainer


class Masked(nn.Module):
    """Keeps a mask as a plain attribute, which no `.to()` moves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mask = nn.Linear(3, 3), torch.tensor([1.0, 0.0, 2.0])

    def forward(self, x):
        return torch.cat([self.layer(x) * self.mask, self.mask.expand_as(x)], 1)[:, self.mask.argsort()]


def test_a_trainer_takes_them_and_follows_another_one():
    """Losses are PyTorch's, before and after the mask is replaced."""
    torch.manual_seed(0)
    model = Masked()
    native = copy.deepcopy(model)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), F.mse_loss)
    optimizer = torch.optim.SGD(native.parameters(), lr=0.1)
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    found, expected = [], []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: found.append(engine.state.output))
    for _ in range(2):
        trainer.run([(x, y)] * 2)
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.mse_loss(native(x), y)
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
        model.mask, native.mask = torch.tensor([3.0, 1.0, 0.5]), torch.tensor([3.0, 1.0, 0.5])
    assert found == pytest.approx(expected, rel=1e-4)


class Trained(nn.Module):
    """Has a layer that is not registered, so that PopTorch knows nothing of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden = nn.Linear(3, 3), [nn.Linear(3, 3)]

    def forward(self, x):
        return self.hidden[0](self.layer(x))


class Written(nn.Module):
    """Has batch statistics that are not registered."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean, self.variance = nn.Linear(3, 3), torch.zeros(3), torch.ones(3)

    def forward(self, x):
        return F.batch_norm(self.layer(x), self.mean, self.variance, training=True)


@pytest.mark.parametrize("kind", [Trained, Written])
def test_what_is_trained_or_written_is_refused(kind):
    """A copy on the device would be trained and written instead, and lost."""
    model = kind()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), F.mse_loss)
    with pytest.raises(backend.poptorch().Error, match="Expected an IPU tensor"):
        trainer.run([(torch.randn(4, 3), torch.randn(4, 3))])


class OnItsDevice(nn.Module):
    """Makes, draws and moves tensors on the device that it was given, as code for GPUs does."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.layer, self.device = nn.Linear(3, 3), torch.device(device)

    def forward(self, x):
        hidden = self.layer(x).to(self.device)
        output = torch.zeros(len(x), 2, 3, device=self.device)
        output[:, 0] = hidden
        output[..., 1, 1:] = hidden[:, :2] * 2
        output[0, 1, 0] = hidden[0, 0]
        return output.cpu().flatten(1)


def test_forwards_that_make_and_move_tensors_on_a_device_of_theirs():
    """On an IPU there is one; writes into slices of tensors that are made there count, which PopTorch would lose."""
    torch.manual_seed(0)
    model = OnItsDevice()
    native = copy.deepcopy(model)
    x, y = torch.randn(4, 3), torch.randn(4, 6)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), F.mse_loss)
    optimizer = torch.optim.SGD(native.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer.run([(x, y)] * 3)
    for _ in range(3):
        optimizer.zero_grad()
        F.mse_loss(native(x), y).backward()
        optimizer.step()
    assert torch.allclose(model.layer.weight, native.layer.weight, rtol=1e-5)


class Noisy(nn.Module):
    """Adds noise that is drawn in one of several ways."""

    def __init__(self, draw) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(3, 3), draw

    def forward(self, x):
        return self.layer(x) + self.draw(x)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.randn(4, 3, device="cpu"),
        lambda x: torch.rand(4, 3, device=torch.device("cpu")).to("cpu"),
        lambda x: torch.bernoulli(torch.full((4, 3), 0.5, device="cpu")),
        lambda x: torch.distributions.Normal(torch.zeros(3), torch.ones(3)).sample((4,)),
        lambda x: torch.randn_like(torch.zeros(4, 3, device="cpu")),
    ],
)
def test_noise_that_a_forward_draws_on_its_device_is_another_one_in_every_step(draw):
    """Drawn on the host, while the model is traced, it would be a constant of the program."""
    torch.manual_seed(0)
    model = Noisy(draw)
    # Twelve bits may be the same ones by chance.
    optimizer, config = torch.optim.SGD(model.parameters(), lr=0.0), IPUConfig(seed=0)
    trainer = create_ipu_trainer(model, optimizer, F.mse_loss, config=config)
    losses = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
    trainer.run([(torch.ones(4, 3), torch.zeros(4, 3))] * 3)
    assert len(set(losses)) == 3
