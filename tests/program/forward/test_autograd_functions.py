"""Custom autograd functions, whose backward no IPU runs: refused in training, and nothing else of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import LossError, create_ipu_evaluator, create_ipu_trainer
from tests.supervised import network, task


class Reversed(torch.autograd.Function):
    """Passes the negative gradient, as domain adaptation does."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class ReversedBySetup(torch.autograd.Function):
    """The same, with a context that is set up apart."""

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class Model(nn.Module):
    def __init__(self, detached=False):
        super().__init__()
        self.inner, self.detached = network(), detached

    def forward(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.detached):
            reversed_x = Reversed.apply(x * 2)
        return self.inner(reversed_x)


def trainer_of(model, loss_fn=nn.functional.cross_entropy):
    return create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn)


def test_training_refuses_one_in_the_model():
    """In eager PyTorch the layers in front of it would learn the opposite."""
    with pytest.raises(LossError, match=r"Reversed is an autograd\.Function with a backward of its own"):
        trainer_of(Model()).run(DataLoader(task(), batch_size=16))


@pytest.mark.parametrize("function", [Reversed, ReversedBySetup])
def test_training_refuses_one_by_another_name(function):
    """As in `reverse = Reversed.apply`, which a module says once."""
    reverse = function.apply

    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = nn.Linear(6, 6), network()

        def forward(self, x):
            with torch.no_grad():
                scale = reverse(self.first(x)).abs().mean()
            return self.inner(reverse(self.first(x)) * scale)

    model = Renamed()
    assert torch.isfinite(create_ipu_evaluator(model).run(DataLoader(task(), batch_size=16)).output[0]).all()
    with pytest.raises(LossError, match=rf"{function.__name__} is an autograd\.Function with a backward of its own"):
        trainer_of(model).run(DataLoader(task(), batch_size=16))
    assert reverse(torch.ones(2, requires_grad=True)).sum().backward() is None


def test_training_refuses_one_in_the_loss():
    """A loss is differentiated like the model."""

    def loss_fn(output, y):
        return Reversed.apply(nn.functional.cross_entropy(output, y))

    with pytest.raises(LossError, match="Reversed"):
        trainer_of(network(), loss_fn).run(DataLoader(task(), batch_size=16))


def test_without_gradients_it_is_its_forward():
    """In an evaluation, and where the model is not differentiated, its forward is all that counts."""
    x, y = task()[:]
    model = Model()
    state = create_ipu_evaluator(model).run(DataLoader(TensorDataset(x, y), batch_size=len(x)))
    torch.testing.assert_close(state.output[0], model.inner(x * 2).detach())
    trainer_of(Model(detached=True)).run(DataLoader(task(), batch_size=16))
