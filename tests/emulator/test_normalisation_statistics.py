"""Running statistics are updated by a training program: an inference executor reads them and never writes them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ignite_ipu.emulator as poptorch

X = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))


def by_function(x, mean, var):
    return F.batch_norm(x, mean, var, torch.ones_like(mean), torch.zeros_like(mean), training=True)


def by_positions(x, mean, var):
    return torch.batch_norm(x, torch.ones_like(mean), torch.zeros_like(mean), mean, var, True, 0.1, 1e-5, False)


class Normalises(nn.Module):
    """Normalises, counts its calls, and returns the statistics that it has then."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.kind = kind
        self.norm = kind(3, affine=True, track_running_stats=True) if isinstance(kind, type) else nn.BatchNorm1d(3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        norm = self.norm
        out = norm(x) if isinstance(self.kind, type) else self.kind(x, norm.running_mean, norm.running_var)
        self.calls.add_(1)
        return out, norm.running_mean, norm.running_var, self.calls


KINDS = [nn.BatchNorm1d, nn.InstanceNorm1d, by_function, by_positions]


@pytest.mark.parametrize("kind", KINDS)
def test_inference_in_training_mode_normalises_with_the_batch_and_keeps_the_statistics(kind):
    """On the device, in forward's results, and on the host; PyTorch's output is the truth."""
    net = Normalises(kind).train()
    before = copy.deepcopy(net.norm.state_dict())
    model = poptorch.inferenceModel(net)
    expected = copy.deepcopy(net)(X)[0].detach()
    for call in (1, 2):
        out, mean, var, calls = model(X)
        torch.testing.assert_close(out, expected)
        assert torch.equal(mean, before["running_mean"]) and torch.equal(var, before["running_var"])
        assert calls == call, "what forward itself writes stays"
    model.copyWeightsToHost()
    assert all(torch.equal(value, before[name]) for name, value in net.norm.state_dict().items())
    assert net.calls == 2


def test_training_updates_them():
    class Trains(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return F.mse_loss(self.norm(x) * self.scale, x)

    net, native = Trains(), nn.BatchNorm1d(3)
    model = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.0))
    for _ in range(2):
        model(X)
        native(X)
    assert net.norm.running_mean.tolist() == pytest.approx(native.running_mean.tolist(), rel=1e-5)
    assert net.norm.running_var.tolist() == pytest.approx(native.running_var.tolist(), rel=1e-5)
