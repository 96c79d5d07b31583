"""Buffers that forward registers while it is traced."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import ignite_ipu.emulator as poptorch

X = torch.arange(6.0).reshape(2, 3)


class Masked(nn.Module):
    """Makes its mask in the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("steps", torch.arange(1.0, 4.0))

    def forward(self, x):
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.tril(torch.ones(3, 3)) * self.steps)
        return poptorch.identity_loss(self.layer(x) @ self.mask, "none")


@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
@pytest.mark.parametrize("inner", [False, True])
def test_constants_are_there_on_the_host_too(wrap, inner):
    torch.manual_seed(0)
    model = nn.Sequential(Masked()) if inner else Masked()
    expected = torch.tril(torch.ones(3, 3)) * torch.arange(1.0, 4.0)
    first = wrap(model)
    out = first(X)
    first(X)
    module = model[0] if inner else model
    torch.testing.assert_close(module.mask, expected)
    torch.save(model.state_dict(), io.BytesIO())
    first.destroy()
    weight, bias = module.layer.weight.detach(), module.layer.bias.detach()
    torch.testing.assert_close(poptorch.inferenceModel(model)(X), (X @ weight.T + bias) @ expected)
    assert out.shape == (2, 3)


def test_other_values_are_left_out_with_a_warning(caplog):
    class Remembers(nn.Module):
        def forward(self, x):
            self.register_buffer("last", x * 2)
            return x + 1

    model = nn.Sequential(Remembers())
    executor = poptorch.inferenceModel(model)
    assert torch.equal(executor(X), X + 1)
    assert torch.equal(executor(X), X + 1)
    assert "0.last was registered by forward while it was traced" in caplog.text
    assert not model.state_dict()


def test_a_failed_trace_leaves_nothing_behind():
    class Fails(Masked):
        def forward(self, x):
            super().forward(x)
            raise ValueError("no")

    model = nn.Sequential(Fails())
    with pytest.raises(ValueError, match="no"):
        poptorch.inferenceModel(model)(X)
    assert set(model.state_dict()) == {"0.layer.weight", "0.layer.bias", "0.steps"}


def test_a_tensor_kept_from_an_earlier_trace_is_refused():
    """It is a plain attribute, which looks like one that the module is meant to keep."""

    class Keeps(nn.Module):
        kept = None

        def forward(self, x):
            if self.kept is None:
                self.kept = torch.tril(torch.ones(3, 3))
            return x @ self.kept

    model = nn.Sequential(Keeps())
    assert torch.equal(poptorch.inferenceModel(model)(X), X @ torch.tril(torch.ones(3, 3)))
    with pytest.raises(poptorch.Error, match="was used after the trace it belongs to"):
        poptorch.inferenceModel(model)(X)
