"""Operations that PyTorch does not support on an IPU are refused with an explanation."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import checkpoint

import ignite_ipu.emulator as poptorch

# PyTorch 2.1 brought it; before, a checkpoint that cuts no gradients is no more than a call of its function.
ASKS_FOR_THE_DEVICES_MODULE = hasattr(checkpointing, "_infer_device_type")


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.function(self.layer(x)), "mean")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_pytorchs_checkpoints(wrap, reentrant):
    """They are refused, and where PyTorch asks for no module of the device, those alone that would cut gradients."""
    plain = Calls(torch.tanh)
    model = copy.deepcopy(plain)
    model.function = lambda x: checkpoint(torch.tanh, x, use_reentrant=reentrant)
    training = wrap is poptorch.trainingModel
    if ASKS_FOR_THE_DEVICES_MODULE or (training and reentrant):
        with pytest.raises(poptorch.Error, match=r"torch\.utils\.checkpoint.*poptorch\.recomputationCheckpoint"):
            wrap(model)(torch.ones(2, 2))
        return
    results = []
    for each in (plain, model):
        optimizer = [torch.optim.SGD(each.parameters(), lr=0.5)] if training else []
        executor = wrap(each, None, *optimizer)
        results.append([executor(torch.ones(2, 2)) for _ in range(2)])
        assert training != torch.equal(*results[-1])
    torch.testing.assert_close(*results)


def test_compiled_functions():
    whole = torch.compile(lambda x: torch.tanh(x) * 2, fullgraph=True)
    with pytest.raises(
        poptorch.Error, match=r"torch\.compile is not supported.*Call the function that it was made from"
    ):
        poptorch.inferenceModel(Calls(whole))(torch.ones(2, 2))


def test_other_errors_are_forwards_own():
    def fails(x):
        raise AttributeError("module 'torch' has no attribute 'tpu'")

    with pytest.raises(AttributeError, match="tpu"):
        poptorch.inferenceModel(Calls(fails))(torch.ones(2, 2))


@pytest.mark.parametrize(
    "transformed",
    [
        lambda x: torch.func.grad(lambda v: (v**2).sum())(x),
        lambda x: torch.func.vjp(lambda v: v**2, x)[1](x)[0],
        lambda x: torch.func.jvp(lambda v: v**2, (x,), (x,))[1],
        lambda x: torch.func.jacrev(lambda v: v**2)(x).sum(),
        pytest.param(
            lambda x: torch.func.hessian(lambda v: (v**3).sum())(x).sum(),
            marks=pytest.mark.skipif(
                not ASKS_FOR_THE_DEVICES_MODULE, reason="PyTorch 2.0 begins it with zero-sized tensors, also refused"
            ),
        ),
    ],
)
@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_derivatives_within_forward(wrap, transformed):
    """PyTorch would end the process."""
    with pytest.raises(poptorch.Error, match=r"torch\.func\.grad, vjp, jvp and transforms of them are not supported"):
        wrap(Calls(transformed))(torch.ones(2, 2))


@pytest.mark.parametrize(
    "mapped",
    [
        lambda x: torch.vmap(torch.dot, in_dims=(0, None))(x, x[0]),
        lambda x: torch.vmap(lambda row: row + x[0])(x),
        lambda x: torch.vmap(lambda row: row + torch.ones(2, device=x.device))(x),
    ],
)
@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_transforms_next_to_tensors_from_outside(wrap, mapped):
    """Their tensors report the IPU as their device."""
    with pytest.raises(poptorch.Error, match=r"torch\.vmap or another transform .* Write the dimension"):
        wrap(Calls(mapped))(torch.ones(2, 2))


def test_transforms_of_all_their_tensors_are_traced():
    model, x = Calls(lambda x: torch.vmap(torch.dot)(x, x)), torch.randn(2, 2)
    expected = model(x).detach()
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), expected)


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_of_modules_never_run(register):
    """They do not stop a model from being trained either."""
    model = Calls(torch.tanh)
    weight = model.layer.weight.detach().clone()
    getattr(model.layer, register)(lambda *args: pytest.fail("a hook ran"))
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.5))
    executor(torch.ones(2, 2))
    assert not torch.equal(model.layer.weight.detach(), weight)
