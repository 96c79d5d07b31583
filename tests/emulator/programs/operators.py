"""Helpers for use within a model: decoding, printing, losses, convolutions in one, serialisation, memory."""

from __future__ import annotations

import contextlib
import io

import poptorch
import torch
from torch import nn


class Calls(nn.Module):
    """A model out of a function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def infer(function, *inputs):
    model = poptorch.inferenceModel(Calls(function))
    result = model(*inputs)
    model.destroy()
    return result


torch.manual_seed(0)

# Decoding: of three steps over {blank, a, b}, the likeliest labels and how likely they are.
probabilities = torch.tensor([[0.1, 0.8, 0.1], [0.7, 0.2, 0.1], [0.1, 0.1, 0.8]])


class Decoder(nn.Module):
    """Log-probabilities of one sample to its two best label sequences."""

    def forward(self, log_probs, lengths):
        return poptorch.ctc_beam_search_decoder(log_probs, lengths, blank=0, beam_width=5, top_paths=2)


best, lengths, paths = poptorch.inferenceModel(Decoder())(
    probabilities.log().unsqueeze(1), torch.tensor([3], dtype=torch.int32)
)
assert paths[0, 0, : lengths[0, 0]].tolist() == [1, 2]
alignments = [
    0.8 * 0.7 * 0.8,
    0.8 * 0.2 * 0.8,
    0.1 * 0.2 * 0.8,
    0.8 * 0.1 * 0.8,
    0.8 * 0.1 * 0.1,
]  # a_b aab _ab abb ab_
torch.testing.assert_close(best[0, 0].exp(), torch.tensor(sum(alignments)))


# Printing: on the device only, and only where the result is used.
class Prints(nn.Module):
    """Prints the output of the layer, and its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        x = poptorch.ipu_print_tensor(self.layer(x), "layer output")
        return x, poptorch.identity_loss(x, "sum")


printed = io.StringIO()
with contextlib.redirect_stderr(printed):
    net = Prints()
    net(torch.ones(1, 2))
    assert "layer output" not in printed.getvalue()
    poptorch.trainingModel(net)(torch.ones(1, 2))
assert "layer output" in printed.getvalue() and "layer output_gradient" in printed.getvalue()


# A loss of one's own: gradient one flows into its argument.
class CustomLoss(nn.Module):
    """The square root of the sum of two losses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, target):
        out = self.layer(x)
        mine = (nn.functional.mse_loss(out, target) + nn.functional.l1_loss(out, target)).sqrt()
        return out, poptorch.identity_loss(mine, reduction="none")


net, x, target = CustomLoss(), torch.randn(4, 3), torch.randn(4, 2)
weight = net.layer.weight.detach().clone()
loss = net(x, target)[1]
gradient = torch.autograd.grad(loss, net.layer.weight)[0]
model = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
torch.testing.assert_close(model(x, target)[1], loss.detach())
torch.testing.assert_close(net.layer.weight.detach(), weight - 0.1 * gradient)

values = torch.randn(2, 3)
for reduction, result in [("sum", values.sum()), ("mean", values.mean()), ("none", values)]:
    torch.testing.assert_close(poptorch.identity_loss(values, reduction), result)
    torch.testing.assert_close(infer(lambda v, r=reduction: poptorch.identity_loss(v, r), values), result)


# Convolutions that run together.
class Together(nn.Module):
    """Two convolutions of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

    def forward(self, x):
        together = poptorch.MultiConv()
        together.availableMemoryProportions((0.3, 0.2)).partialsTypes(torch.float)
        together.planType(poptorch.MultiConvPlanType.Parallel).perConvReservedTiles(120).cycleBackOff(0.4)
        together.enableConvDithering(True)
        with together:
            one, two = self.one(x), self.two(x)
        return one + two


net, x = Together(), torch.randn(2, 3, 5, 5)
torch.testing.assert_close(poptorch.inferenceModel(net)(x), net(x).detach())

# No-ops, matrices multiplied piece by piece, memory for one operator, names and attributes: all but the values.
lhs, rhs = torch.randn(4, 6), torch.randn(6, 8)
torch.testing.assert_close(infer(lambda a: poptorch.nop(a) + 1, lhs), lhs + 1)
for mode, factor in [
    (poptorch.MatMulSerializationMode.InputChannels, 2),
    (poptorch.MatMulSerializationMode.ReducingDim, 3),
    (poptorch.MatMulSerializationMode.OutputChannels, 4),
    (poptorch.MatMulSerializationMode.Disabled, 0),
]:
    result = infer(lambda a, m=mode, f=factor: poptorch.serializedMatMul(a, rhs.to(a.device), m, f), lhs)
    torch.testing.assert_close(result, lhs @ rhs)


def tuned(a):
    with poptorch.NameScope("tuned"), poptorch.Attribute(__outline={"layer": "embedding"}):
        product = poptorch.set_available_memory(torch.matmul(a, a.t()), 0.3)
        return poptorch.recomputationCheckpoint(product, a)


product, same = infer(tuned, lhs)
torch.testing.assert_close(product, lhs @ lhs.t())
assert torch.equal(same, lhs)

# Dynamic ones: loops and branches on the device.
counted = infer(lambda a: poptorch.for_loop(5, lambda v: v * 2, [a])[0], torch.ones(2))
assert counted.tolist() == [32, 32]


def choose(flag, a):
    return poptorch.cond(flag[0], lambda v: v + 1, [a], lambda v: v - 1, [a])[0]


assert infer(choose, torch.tensor([True]), torch.zeros(1)).item() == 1
assert infer(choose, torch.tensor([False]), torch.zeros(1)).item() == -1
rows = torch.arange(12.0).reshape(6, 2)
piece = infer(lambda t, s: poptorch.dynamic_slice(t, 0, s.reshape(()), 2, 1), rows, torch.tensor([2]))
assert torch.equal(piece, rows[2:4])
wider = infer(
    lambda t, s: poptorch.dynamic_update(t, torch.zeros_like(t)[:2], 0, s.reshape(()), 2), rows, torch.tensor([4])
)
assert torch.equal(wider, torch.cat([rows[:4], torch.zeros(2, 2)]))

# Functions that have nothing to do with making models.
assert isinstance(poptorch.ipuHardwareIsAvailable(), bool) and isinstance(poptorch.ipuHardwareIsAvailable(4), bool)
if poptorch.ipuHardwareIsAvailable():
    assert poptorch.ipuHardwareVersion() in (1, 2, 21)
for level in ("TRACE", "DEBUG", "INFO", "ERR", "OFF", 2, "WARN"):
    poptorch.setLogLevel(level)
try:
    poptorch.setLogLevel("LOUD")
except ValueError as error:
    assert "Unknown log level" in str(error)
else:
    raise AssertionError("an unknown level was set")
