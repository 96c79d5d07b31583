"""The recorder keeps values as they are when they are recorded."""

from __future__ import annotations

import torch
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.parity.recorder import Recorder


def test_a_value_that_waits_for_its_update_is_read_when_it_is_recorded():
    """Later its gradients may be dropped, or weights written."""
    model = nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(optimizer, model)
    x = torch.ones(4, 2)
    expected = nn.functional.linear(x, model.weight.detach().clone(), model.bias.detach().clone())
    entry = Recorder(1).record("printed line", "scores", model(x).detach())
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(entry["value"]["values"], expected)
