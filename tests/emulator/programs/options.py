"""Options: set one by one, from a file, from JSON; each category; the batching that they imply."""

from __future__ import annotations

import os
import tempfile

import poptorch
import torch

opts = poptorch.Options()
opts.deviceIterations(2).replicationFactor(2).logDir(tempfile.gettempdir())
opts.Precision.enableStochasticRounding(False).setPartialsType(torch.half)
opts.Training.gradientAccumulation(3).accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
opts.TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
opts.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().minElementsForOffChip(64))
opts.Distributed.disable()
opts.Jit.traceModel(False)
opts.useIpuModel(True)
assert opts.device_iterations * opts.replication_factor * opts.Training.gradient_accumulation == 12

# The same in a file, one command a line.
text = """
# How to run
deviceIterations(2)
replicationFactor(2)

useIpuModel(True)
Training.gradientAccumulation(3)
Precision.enableStochasticRounding(False)
TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
setExecutionStrategy(poptorch.ShardedExecution())   # for debugging
"""
with tempfile.TemporaryDirectory() as directory:
    path = os.path.join(directory, "poptorch.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    loaded = poptorch.Options()
    loaded.loadFromFile(path)
    assert (loaded.device_iterations, loaded.replication_factor) == (2, 2)
    assert loaded.Training.gradient_accumulation == 3

    with open(path, "a", encoding="utf-8") as file:
        file.write("deviceIterations(\n")
    try:
        poptorch.Options().loadFromFile(path)
    except poptorch.ConfigFileError as error:
        assert "poptorch.conf" in str(error)
    else:
        raise AssertionError("a file that is not Python was accepted")

parsed = poptorch.Options().from_json('{"deviceIterations": 4, "outputMode": "OutputMode.Sum"}')
assert parsed.device_iterations == 4 and parsed.output_mode == poptorch.OutputMode.Sum


class Net(torch.nn.Linear):
    """Returns its loss beside its prediction."""

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = super().forward(x)
        return out, torch.nn.functional.mse_loss(out, target)


# Two iterations of three accumulation steps on two replicas, five rows each: sixty rows a call, two weight updates.
torch.manual_seed(0)
net = Net(3, 2)
weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
x, target = torch.randn(60, 3), torch.randn(60, 2)
model = poptorch.trainingModel(net, opts, poptorch.optim.SGD(net.parameters(), lr=0.1))
out, loss = model(x, target)
assert out.shape == (2 * 5, 2) and loss.shape == (2,)
for rows, wanted in zip(x.split(30), target.split(30)):
    difference = 2 * (rows @ weight.T + bias - wanted) / wanted.numel()
    weight, bias = weight - 0.1 * difference.T @ rows, bias - 0.1 * difference.sum(0)
torch.testing.assert_close(net.weight.detach(), weight)
torch.testing.assert_close(net.bias.detach(), bias)

try:
    opts.deviceIterations(1)
except AttributeError as error:
    assert "frozen" in str(error)
else:
    raise AssertionError("options in use were changed")
model.destroy()

# Each output mode keeps its own part of the results of a call.
identity = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
torch.nn.init.ones_(identity.weight)
numbers = torch.arange(8.0).reshape(8, 1)
for mode, period, kept in [
    (poptorch.OutputMode.All, None, [0, 1, 2, 3, 4, 5, 6, 7]),
    (poptorch.OutputMode.Final, None, [6, 7]),
    (poptorch.OutputMode.EveryN, 2, [2, 3, 6, 7]),
    (poptorch.OutputMode.Sum, None, [0 + 2 + 4 + 6, 1 + 3 + 5 + 7]),
    (poptorch.OutputMode.Default, None, [0, 1, 2, 3, 4, 5, 6, 7]),
]:
    chosen = poptorch.Options().deviceIterations(4).outputMode(mode, period)
    assert poptorch.inferenceModel(identity, chosen)(numbers).flatten().tolist() == kept, mode
