"""Operators that overwrite values of the backward pass: PyTorch refuses, the device's compiler keeps both values."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch


class OverBuffer(nn.Module):
    """Scales by a buffer, and changes it afterwards."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.in_place = in_place
        self.register_buffer("scale", torch.full((2,), 2.0))

    def forward(self, x, y):
        out = self.layer(x) * self.scale
        if self.in_place:
            self.scale.mul_(0.5)
        else:
            self.scale = self.scale * 0.5
        return nn.functional.mse_loss(out, y)


class OverActivation(OverBuffer):
    """Squares a value that is dropped out at random, and changes it afterwards."""

    def forward(self, x, y):
        out = nn.functional.dropout(torch.sigmoid(self.layer(x)), 0.5)
        square = out * out
        if self.in_place:
            out.add_(1)
        else:
            out = out + 1
        return nn.functional.mse_loss(square + out, y)


class Shown(OverBuffer):
    """Prints its result."""

    def forward(self, x, y):
        return super().forward(poptorch.ipu_print_tensor(x, "seen"), y)


def trained(model: nn.Module, batches) -> None:
    options = poptorch.Options().deviceIterations(2).randomSeed(3)
    options.Training.gradientAccumulation(2)
    executor = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.5))
    for batch in batches:
        executor(*batch)
    executor.destroy()


def batches(count: int):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(count)]


def test_a_buffer_that_is_written_after_it_was_used():
    model, plain = OverBuffer(in_place=True), OverBuffer(in_place=False)
    trained(model, batches(2))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    for x, y in batches(2):
        for update in range(2):
            optimizer.zero_grad()
            for micro_batch in (2 * update, 2 * update + 1):
                rows = slice(2 * micro_batch, 2 * micro_batch + 2)
                (plain(x[rows], y[rows]) / 2).backward()
            optimizer.step()
    torch.testing.assert_close(model.layer.weight.detach(), plain.layer.weight.detach())
    torch.testing.assert_close(model.scale, plain.scale)


def test_an_activation_that_is_written_after_it_was_used():
    """The first micro-batch draws its random numbers once."""
    model, plain = OverActivation(in_place=True), OverActivation(in_place=False)
    trained(model, batches(3))
    trained(plain, batches(3))
    torch.testing.assert_close(model.layer.weight.detach(), plain.layer.weight.detach())


class OverActivationWithConstants(OverBuffer):
    """Sets a column of an activation, and uses constants whose elements share memory."""

    def __init__(self, in_place: bool) -> None:
        super().__init__(in_place)
        self.positions = nn.Embedding(2, 2)
        self.register_buffer("columns", torch.tensor([[1, 0]]))

    def forward(self, x, y):
        rows = x.shape[0]
        positions = self.positions(torch.arange(2, device=x.device).expand(rows, 2)).sum(1)
        flags = torch.tensor([True, False], device=x.device).expand(rows, 2)
        gates = torch.sigmoid(self.layer(x)).gather(1, self.columns.expand(rows, 2))
        gates = torch.sigmoid(torch.where(flags, gates, torch.full((1, 1), 0.5, device=x.device).expand(rows, 2)))
        if self.in_place:
            gates[:, 0] = 0.5
        else:
            gates = torch.stack((torch.full((rows,), 0.5), gates[:, 1]), 1)
        return nn.functional.mse_loss(gates + positions, y)


def test_constants_whose_elements_share_memory_stay_as_they_are():
    model, plain = OverActivationWithConstants(in_place=True), OverActivationWithConstants(in_place=False)
    x, y = batches(1)[0]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    for _ in range(2):
        optimizer.zero_grad()
        loss = plain(x, y)
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(executor(x, y), loss.detach())
    executor.copyWeightsToHost()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())


def test_what_acts_on_the_host_acts_once_a_micro_batch(capfd):
    model, plain = Shown(in_place=True), OverBuffer(in_place=True)
    trained(model, batches(1))
    trained(plain, batches(1))
    assert capfd.readouterr().err.count("seen:") == 4
    torch.testing.assert_close(model.layer.weight.detach(), plain.layer.weight.detach())


def test_other_errors_of_the_backward_pass_are_those_of_pytorch():
    class Wrong(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x, label):
            self.seen.add_(1)
            return nn.functional.cross_entropy(self.layer(x), label)

    model = Wrong()
    executor = poptorch.trainingModel(model)
    with pytest.raises(IndexError, match="out of bounds"):
        executor(torch.randn(2, 3), torch.tensor([0, 5]))
    executor.copyWeightsToHost()
    assert model.seen.item() == 1
