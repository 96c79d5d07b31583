"""`convert_optimizer_state`: checkpoints of torch's optimizers for PopTorch's, and back, in loops of one's own."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ignite_ipu import OptimizerError, backend, convert_optimizer_state
from tests.supervised import assert_same_weights, network, task

poptorch = backend.poptorch()
PAIRS = {
    "SGD": (torch.optim.SGD, poptorch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "scaled SGD": (torch.optim.SGD, poptorch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "Adam": (torch.optim.Adam, poptorch.optim.Adam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, poptorch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "RMSprop": (torch.optim.RMSprop, poptorch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
}


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.model(x), y)


def batches():
    x, y = task().tensors
    return list(zip(x.split(16), y.split(16)))


def train_natively(model, optimizer):
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("name", PAIRS)
def test_a_hand_written_run_moves_to_poptorch_and_back(name):
    native, device, arguments = PAIRS[name]
    extra = {"loss_scaling": 16.0} if name == "scaled SGD" else {}
    whole = network()
    optimizer = native(whole.parameters(), **arguments)
    for _ in range(3):
        train_natively(whole, optimizer)

    model = network()
    optimizer = native(model.parameters(), **arguments)
    train_natively(model, optimizer)

    step = WithLoss(model)
    on_device = device(model.parameters(), **arguments, **extra)
    on_device.load_state_dict(convert_optimizer_state(optimizer.state_dict(), on_device, step))
    executor = poptorch.trainingModel(step, poptorch.Options(), on_device)
    for x, y in batches():
        executor(x, y)
    saved = copy.deepcopy(on_device.state_dict())
    executor.copyWeightsToHost()
    executor.destroy()

    back = native(model.parameters(), **arguments)
    back.load_state_dict(convert_optimizer_state(saved, on_device, step, steps=8))
    train_natively(model, back)
    assert_same_weights(model, whole, rtol=1e-4, atol=1e-5)
    counted = [float(entries["step"]) for entries in back.state.values() if "step" in entries]
    assert set(counted) <= {12.0}


def test_an_unused_device_has_an_empty_state():
    model = network()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    converted = convert_optimizer_state(optimizer.state_dict(), optimizer, model)
    assert converted["state"] == {} and converted["param_groups"][0]["lr"] == 0.1


def test_other_groups_and_other_parameters_are_refused():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    fewer = torch.optim.Adam(model[0].parameters())
    with pytest.raises(OptimizerError, match=r"groups of \[2\] parameters, but the optimizer has \[4\]"):
        convert_optimizer_state(fewer.state_dict(), optimizer, model)
    with pytest.raises(OptimizerError, match="not the module's"):
        convert_optimizer_state(optimizer.state_dict(), optimizer, network())


def test_the_model_inside_the_wrapped_module_is_refused():
    """PopTorch names the state for the module that it wraps, and would ignore other names."""
    model = network()
    native = torch.optim.Adam(model.parameters())
    train_natively(model, native)
    on_device = poptorch.optim.Adam(model.parameters())
    executor = poptorch.trainingModel(WithLoss(model), poptorch.Options(), on_device)
    executor(*batches()[0])
    message = r"has Accl1___model.0.weight, but the Sequential .* 0.weight, 0.bias, .*handed to poptorch.trainingModel"
    for state in (on_device.state_dict(), native.state_dict()):
        with pytest.raises(OptimizerError, match=message):
            convert_optimizer_state(state, on_device, model)
    executor.destroy()


def test_the_state_of_another_kind_is_refused():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    train_natively(model, optimizer)
    with pytest.raises(OptimizerError, match="exp_avg"):
        convert_optimizer_state(optimizer.state_dict(), torch.optim.SGD(model.parameters(), lr=0.1), model)
