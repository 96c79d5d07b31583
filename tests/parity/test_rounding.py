"""Weights whose gradients are rounding alone are no difference of two runs, and every other weight is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.in_process import compare_both

SCRIPT = """
import os, sys
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
planted = sys.argv[1] if os.environ["IGNITE_IPU_PARITY"] == "device" else ""
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).to(device)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
inputs, targets = torch.randn(24, 6), torch.randint(3, (24,))
for update in range(6):
    # Rows in another order change the rounding of sums over them, and nothing else.
    order = torch.randperm(24, generator=torch.Generator().manual_seed(update)) if planted else torch.arange(24)
    loss = nn.functional.cross_entropy(model(inputs[order].to(device)), targets[order].to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if planted == "a bias" and update == 3:
        with torch.no_grad():
            model[3].bias.add_(0.01)
    if planted == "a statistic" and update == 3:
        model[1].running_var.mul_(1.5)
"""


@pytest.mark.parametrize("optimizer", ["Adam", "RMSprop"])
def test_a_bias_before_a_normalisation_moves_by_rounding(optimizer: str, tmp_path: Path) -> None:
    parity = compare_both(SCRIPT.replace("{optimizer}", optimizer), tmp_path, "rows")
    assert parity.agrees, parity.first
    (remark,) = [each for each in parity.remarks if "rounding" in each]
    assert ": 0.bias. " in remark


@pytest.mark.parametrize(("planted", "name"), [("a bias", "3.bias"), ("a statistic", "1.running_var")])
def test_other_differences_are_found_beside_it(planted: str, name: str, tmp_path: Path) -> None:
    parity = compare_both(SCRIPT.replace("{optimizer}", "Adam"), tmp_path, planted)
    assert parity.first is not None
    assert parity.first.name == name


def test_an_optimizer_that_does_not_divide_by_gradients_needs_no_allowance(tmp_path: Path) -> None:
    parity = compare_both(SCRIPT.replace("{optimizer}", "SGD"), tmp_path, "rows")
    assert parity.agrees, parity.first
    assert not [each for each in parity.remarks if "rounding" in each]
