"""Hooks on gradients are refused by engines and captured loops alike, because no device would call them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook
from torch.utils.data import DataLoader

from ignite_ipu import IPUAccelerator, create_ipu_trainer
from ignite_ipu.errors import LossError, SessionError
from tests.accelerate_state import forget
from tests.supervised import network, task


def train_by_engine(model, optimizer):
    create_ipu_trainer(model, optimizer, nn.functional.cross_entropy).run(DataLoader(task(), batch_size=16))


def train_by_loop(model, optimizer):
    forget()
    accelerator = IPUAccelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(task(), batch_size=16))
    for x, y in loader:
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


HOOKS = {
    r"0\.weight, 0\.bias": lambda model: [
        parameter.register_hook(lambda gradient: gradient * 0) for parameter in model[0].parameters()
    ],
    r"0\.weight": lambda model: [model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)],
    r"0": lambda model: [model[0].register_full_backward_hook(lambda *_: None)],
    r"the model": lambda model: [model.register_full_backward_pre_hook(lambda *_: None)],
    r"all modules": lambda model: [register_module_full_backward_hook(lambda *_: None)],
}


@pytest.mark.parametrize(("train", "later"), [(train_by_engine, False), (train_by_loop, False), (train_by_loop, True)])
@pytest.mark.parametrize("names", HOOKS)
def test_they_are_refused(train, later, names):
    """In eager PyTorch they change the training; without them, a loop goes on.

    With those on parameters, it goes on, too.
    """
    if names == r"0\.weight" and not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        pytest.skip("PyTorch 2.1 brought register_post_accumulate_grad_hook")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if later:
        train_by_loop(model, optimizer)
    handles = HOOKS[names](model)
    try:
        if train is train_by_loop and names.startswith("0\\."):
            before = model[0].weight.detach().clone()
            train(model, optimizer)
            assert torch.equal(model[0].weight, before) is ("bias" in names)
            return
        with pytest.raises(SessionError, match=rf"registered on {names}, which would never run.*Remove the hooks"):
            train(model, optimizer)
    finally:
        for handle in handles:
            handle.remove()
    if train is train_by_loop:
        train(model, optimizer)


class Hooking(nn.Module):
    """Hooks the gradient of its first layer's output."""

    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x):
        hidden = self.layers[0](x)
        hidden.register_hook(lambda gradient: gradient * 0)
        return self.layers[1:](hidden)


@pytest.mark.parametrize("train", [train_by_engine, train_by_loop])
def test_those_of_a_forward_are_refused(train):
    """They would be registered while the model is traced, and never run."""
    model = Hooking()
    with pytest.raises(LossError, match=r"calls register_hook\(\) on a tensor of shape .*, which would never run"):
        train(model, torch.optim.SGD(model.parameters(), lr=0.05))
