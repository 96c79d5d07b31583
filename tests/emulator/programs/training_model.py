"""`trainingModel`: the loss is found, the last outputs come back, and when weights must be copied by hand."""

from __future__ import annotations

import copy

import poptorch
import torch


class ModelWithLoss(torch.nn.Module):
    """A linear model; gives its loss too when it gets a target."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(10, 10)
        self.loss = torch.nn.MSELoss()

    def forward(self, data, target=None):
        out = self.fc(data)
        return out if target is None else (out, self.loss(out, target))


torch.manual_seed(42)
model = ModelWithLoss()
plain = copy.deepcopy(model)
wrapped = poptorch.trainingModel(model)  # SGD with lr 0.01 unless another is given
assert isinstance(wrapped, poptorch.PoplarExecutor)
data, target = torch.rand(10), torch.randint(0, 10, [10]).float()
reference = torch.optim.SGD(plain.parameters(), lr=0.01)
losses = []
for _ in range(200):
    out, loss = wrapped(data, target)
    losses.append(loss.item())
    reference.zero_grad()
    expected = plain(data, target)[1]
    torch.testing.assert_close(loss, expected.detach())
    expected.backward()
    reference.step()
assert losses[-1] < losses[0] / 10

# The wrapped model's weights follow those on the device without being asked.
torch.testing.assert_close(model.fc.weight.detach(), plain.fc.weight.detach())
try:
    loss.backward()
except poptorch.Error as error:
    assert "backward() cannot be called" in str(error)
else:
    raise AssertionError("an output could be differentiated again")

# A model over the same module, made after it, does too.
inference = poptorch.inferenceModel(model)
torch.testing.assert_close(inference(data), plain(data).detach())

# Edits on the host reach the device when they are copied there, and not before.
with torch.no_grad():
    model.fc.weight.zero_()
    model.fc.bias.fill_(3.0)
torch.testing.assert_close(inference(data), plain(data).detach())
inference.copyWeightsToDevice()
assert torch.equal(inference(data), torch.full((10,), 3.0))

# So does training on the CPU after wrapping: the device goes on from the host's weights.
cpu = torch.optim.SGD(model.parameters(), lr=0.5)
model(data, target)[1].backward()
cpu.step()
wrapped.copyWeightsToDevice()
with torch.no_grad():
    start = model.fc.bias.clone()
    error = model.fc(data) - target
wrapped(data, target)
wrapped.copyWeightsToHost()
torch.testing.assert_close(model.fc.bias.detach(), start - 0.01 * 2 * error / 10)

# Flags are read when a model is compiled: set them before.
dropout = torch.nn.Sequential(torch.nn.Dropout(0.5))
dropout.eval()
still = poptorch.inferenceModel(dropout)
ones = torch.ones(100)
assert torch.equal(still(ones), ones)
dropout.train()
assert torch.equal(still(ones), ones)
assert set(poptorch.inferenceModel(dropout)(ones).tolist()) == {0.0, 2.0}

# Only the last micro-batch's outputs come back from training unless more are asked for.
for mode, rows in [(poptorch.OutputMode.Default, 2), (poptorch.OutputMode.All, 8)]:
    net = ModelWithLoss()
    trained = poptorch.trainingModel(net, poptorch.Options().deviceIterations(4).outputMode(mode))
    out, loss = trained(torch.rand(8, 10), torch.rand(8, 10))
    assert out.shape == (rows, 10) and loss.numel() == rows // 2
