"""State that models keep: plain attributes are frozen, buffers live on the device."""

from __future__ import annotations

import poptorch
import torch


class Wrong(torch.nn.Module):
    """Counts in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.i = 0

    def forward(self, x):
        self.i += 1
        return x + self.i


class Right(torch.nn.Module):
    """Counts in a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("i", torch.zeros(1))

    def forward(self, x):
        self.i += 1.0
        return x + self.i


class Rebinds(Right):
    """Puts another tensor in the buffer's place."""

    def forward(self, x):
        self.i = self.i + 1.0
        return x + self.i


class Last(torch.nn.Module):
    """Remembers its last input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(2, 3))

    def forward(self, x):
        before = self.last.clone()
        self.last.copy_(x)
        return before


zero = torch.zeros(1)
cpu = Wrong()
assert [cpu(zero).item() for _ in range(3)] == [1, 2, 3]
wrong = poptorch.inferenceModel(Wrong())
assert [wrong(zero).item() for _ in range(3)] == [1, 1, 1]

net = Right()
right = poptorch.inferenceModel(net)
assert [right(zero).item() for _ in range(3)] == [1, 2, 3]
assert net.i.item() == 0  # inference brings nothing back by itself
right.copyWeightsToHost()
assert net.i.item() == 3
right.copyWeightsToDevice()
assert right(zero).item() == 4

model = poptorch.inferenceModel(Last())
first, second = torch.randn(2, 3), torch.randn(2, 3)
assert torch.equal(model(first), torch.zeros(2, 3)) and torch.equal(model(second), first)

try:
    poptorch.inferenceModel(Rebinds())(zero)
except poptorch.Error as error:
    assert "is reassigned within the model" in str(error)
else:
    raise AssertionError("a buffer was replaced")

# Every micro-batch counts; with replicas each has a buffer of its own, or none may be written.
four = poptorch.inferenceModel(Right(), poptorch.Options().deviceIterations(4))
assert four(torch.zeros(4)).tolist() == [1, 2, 3, 4]
try:
    poptorch.inferenceModel(Right(), poptorch.Options().replicationFactor(2))(torch.zeros(2))
except poptorch.Error as error:
    assert "does not support broadcasting buffers" in str(error)
else:
    raise AssertionError("a buffer was broadcast")
own = poptorch.Options().replicationFactor(2).deviceIterations(2).broadcastBuffers(False)
assert poptorch.inferenceModel(Right(), own)(torch.zeros(4)).tolist() == [1, 1, 2, 2]


class Normalised(torch.nn.Module):
    """Trains with batch statistics, whose running values are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
        return poptorch.identity_loss(self.norm(x), "mean")


# After training, reading a buffer brings it from the device.
trained, plain = Normalised(), Normalised()
x = torch.randn(6, 3)
poptorch_model = poptorch.trainingModel(trained, poptorch.Options().deviceIterations(2))
poptorch_model(x)
for rows in x.split(3):
    plain(rows)
torch.testing.assert_close(trained.norm.running_mean, plain.norm.running_mean)
torch.testing.assert_close(trained.norm.running_var, plain.norm.running_var)

# Buffers that are listed can be sent by themselves, without the weights.
net = Right()
listed = poptorch.inferenceModel(net, poptorch.Options().updatableNamedBuffers(["i"]))
listed(zero)
net.i.fill_(41.0)
listed.copyNamedBuffersToDevice()
assert listed(zero).item() == 42
