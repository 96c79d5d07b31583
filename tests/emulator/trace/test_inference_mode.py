"""`torch.inference_mode` around device calls, and in a forward: results are PyTorch's, and weights can still change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu import emulator as poptorch


class Model(nn.Module):
    """A model that changes a tensor in place, in inference mode of its own if asked to."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.own = own

    def forward(self, x):
        with torch.inference_mode(self.own):
            y = self.layer(x)
            y += 1
            return y


@pytest.mark.parametrize("own", [False, True])
def test_a_model_compiles_and_runs_in_it(own):
    torch.manual_seed(0)
    model, x = Model(own).eval(), torch.randn(2, 4)
    expected = model(x).clone()
    with torch.inference_mode():
        wrapped = poptorch.inferenceModel(model)
        torch.testing.assert_close(wrapped(x), expected)
        torch.testing.assert_close(wrapped(torch.ones(2, 4) * x), expected)  # an input that was made in it
    torch.testing.assert_close(wrapped(x), expected)


def test_weights_uploaded_in_it_can_be_replaced_after_it():
    model, x = nn.Linear(2, 1, bias=False).eval(), torch.ones(1, 2)
    with torch.inference_mode():
        wrapped = poptorch.inferenceModel(model)
        wrapped(x)
        wrapped.copyWeightsToDevice()
    with torch.no_grad():
        model.weight.fill_(3.0)
    wrapped.copyWeightsToDevice()
    assert wrapped(x).item() == 6.0


def test_training_in_it_trains():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(1, 1, bias=False)

        def forward(self, x):
            return poptorch.identity_loss(self.model(x).sum(), reduction="none")

    step = Step()
    nn.init.constant_(step.model.weight, 1.0)
    wrapped = poptorch.trainingModel(step, optimizer=poptorch.optim.SGD(step.parameters(), lr=0.5))
    x = torch.full((1, 1), 4.0)
    with torch.inference_mode():
        wrapped(x)
    assert step.model.weight.item() == 1.0 - 0.5 * 4.0


def test_a_model_that_was_made_in_inference_mode_runs():
    """A script whose whole main function is in it, for example."""
    with torch.inference_mode():
        net = nn.Linear(3, 2)
        x = torch.ones(4, 3)
        executor = poptorch.inferenceModel(net)
        assert torch.equal(executor(x), net(x))
        executor.copyWeightsToDevice()
    assert torch.equal(executor(x), executor(x))
