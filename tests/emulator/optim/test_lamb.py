"""LAMB's own step, for runs on the host."""

from __future__ import annotations

import math

import pytest
import torch

from ignite_ipu.emulator.optim import LAMB


@pytest.mark.parametrize("bias_correction", [True, False])
def test_a_host_step_follows_the_formula(bias_correction: bool) -> None:
    """Ten steps on one tensor, against the formula in plain numbers of float64."""
    torch.manual_seed(3)
    parameter = torch.nn.Parameter(torch.randn(6))
    optimizer = LAMB([parameter], 0.05, (0.8, 0.9), 1e-6, 0.1, bias_correction)
    w, m, v = parameter.detach().double(), torch.zeros(6).double(), torch.zeros(6).double()
    for t in range(1, 11):
        g = torch.randn(6)
        parameter.grad = g.clone()
        assert optimizer.step() is None
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g.double() ** 2
        c1, c2 = (1 - 0.8**t, 1 - 0.9**t) if bias_correction else (1.0, 1.0)
        x = (m / c1) / ((v / c2).sqrt() + 1e-6) + 0.1 * w
        w = w - 0.05 * float(w.norm() / x.norm()) * x
    torch.testing.assert_close(parameter.detach().double(), w, rtol=1e-5, atol=1e-6)


def test_the_host_limits_weight_norms_by_the_constructor_value() -> None:
    """Changing the group's limit has no effect on the host."""
    parameter = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = LAMB([parameter], lr=1.0, weight_decay=0.0, max_weight_norm=2.0)
    optimizer.param_groups[0]["max_weight_norm"] = 100.0
    parameter.grad = torch.tensor([1.0, 1.0])
    optimizer.step()
    # The first corrected step is (1, 1), of norm sqrt(2).
    moved = 2.0 / math.sqrt(2.0)
    torch.testing.assert_close(parameter.detach(), torch.tensor([3.0 - moved, 4.0 - moved]))


def test_a_closure_computes_the_gradients_and_its_loss_comes_back() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    untouched = torch.nn.Parameter(torch.tensor([5.0]))
    optimizer = LAMB([parameter, untouched], lr=0.1, weight_decay=0.0)

    def closure() -> float:
        loss = (2 * parameter).sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 2.0
    assert parameter.item() == pytest.approx(0.9)
    assert untouched.item() == 5.0
