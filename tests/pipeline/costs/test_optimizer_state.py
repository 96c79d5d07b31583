"""Estimated optimizer state against the real state."""

from __future__ import annotations

import pytest
import torch

from ignite_ipu.pipeline import OptimizerState, PlanError, optimizer_state


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {}),
        (torch.optim.RMSprop, {}),
        (torch.optim.RMSprop, {"momentum": 0.9}),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    ],
)
def test_slots_are_what_one_step_of_torch_creates(kind, options):
    """Count the tensors of the weight's shape in the state after one step."""
    weight = torch.nn.Parameter(torch.ones(7))
    optimizer = kind([weight], **options)
    weight.grad = torch.ones(7)
    optimizer.step()
    held = [v for v in optimizer.state[weight].values() if isinstance(v, torch.Tensor) and v.shape == weight.shape]
    assert optimizer_state(optimizer).slots == len(held)
    assert optimizer_state(optimizer).bytes(7) == sum(t.numel() * t.element_size() for t in held)


def test_names_and_values_pass():
    assert optimizer_state("LAMB") == OptimizerState("lamb", 2)
    assert optimizer_state(OptimizerState("mine", 3)).slots == 3


def test_subclasses_count_as_their_base():
    class Mine(torch.optim.AdamW):
        pass

    assert optimizer_state(Mine([torch.nn.Parameter(torch.ones(1))])) == OptimizerState("Mine", 2)


def test_what_poptorch_has_not_is_refused():
    weight = [torch.nn.Parameter(torch.ones(1))]
    with pytest.raises(PlanError, match="Adagrad has no counterpart"):
        optimizer_state(torch.optim.Adagrad(weight))
    with pytest.raises(PlanError, match="amsgrad"):
        optimizer_state(torch.optim.Adam(weight, amsgrad=True))
    with pytest.raises(PlanError, match="No optimizer is named 'lion'"):
        optimizer_state("lion")
