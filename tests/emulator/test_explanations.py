"""What PyTorch does not support on an IPU is refused in words that say so."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ignite_ipu.emulator as poptorch


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
    model = Calls(lambda x: checkpoint(torch.tanh, x, use_reentrant=reentrant))
    with pytest.raises(poptorch.Error, match=r"torch\.utils\.checkpoint.*poptorch\.recomputationCheckpoint"):
        wrap(model)(torch.ones(2, 2))


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
        lambda x: torch.func.hessian(lambda v: (v**3).sum())(x).sum(),
    ],
)
@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_derivatives_within_forward(wrap, transformed):
    """PyTorch would end the process."""
    with pytest.raises(
        poptorch.Error, match=r"torch\.func\.grad, vjp, jvp and what is built on them are not supported"
    ):
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
    """Their tensors say that they are on the IPU."""
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
