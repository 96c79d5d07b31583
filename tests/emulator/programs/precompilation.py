"""Compiled without IPUs, exported to files, and loaded to run: with the model or without, alone or in pairs."""

from __future__ import annotations

import copy
import os
import tempfile

import poptorch
import torch


class ExampleModel(torch.nn.Module):
    """A bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.bias


class ExampleModelWithLoss(ExampleModel):
    """The same, with a loss when there is a target."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = torch.nn.MSELoss()

    def forward(self, x, target=None):
        out = super().forward(x)
        return out if target is None else (out, self.loss(out, target))


def optimizer_of(net):
    return poptorch.optim.SGD(net.parameters(), lr=0.25)


os.chdir(tempfile.mkdtemp())
x, target = torch.randn(10), torch.randn(10)


def bias_after(steps, bias=0.0):
    for _ in range(steps):
        bias -= 0.25 * 2 * (x + bias - target).mean().item()
    return bias


# Compile for a machine that is not here. Running takes one that is.
net = ExampleModelWithLoss()
offline = poptorch.trainingModel(net, poptorch.Options().useOfflineIpuTarget(), optimizer_of(net))
offline.compileAndExport("training.poptorch", x, target)
assert offline.isCompiled() and not offline.isAttachedToDevice()
try:
    offline(x, target)
except AssertionError as error:
    assert "offline device" in str(error)
else:
    raise AssertionError("ran without a device")

# Model, wrapper and executable come back together.
training = poptorch.load("training.poptorch")
assert training.isCompiled()
out, loss = training(x, target)
torch.testing.assert_close(out, x)
torch.testing.assert_close(training.model.bias.item(), bias_after(1))
training.destroy()

# Some options are this machine's to say.


def set_ipu(options):
    options.useIpuId(1)


training = poptorch.load("training.poptorch", edit_opts_fn=set_ipu)
training(x, target)
training.detachFromDevice()
training.destroy()

# The executable alone: the model and the wrapper are made again here.
again = poptorch.trainingModel(ExampleModelWithLoss(), poptorch.Options().useOfflineIpuTarget())
again.compileAndExport("executable.poptorch", x, target, export_model=False)
again.destroy()
try:
    poptorch.load("executable.poptorch")
except AssertionError as error:
    assert "is a valid PopTorch file but" in str(error)
else:
    raise AssertionError("a file without a model was loaded as one")
net = ExampleModelWithLoss()
with torch.no_grad():
    net.bias.fill_(0.5)
own = poptorch.trainingModel(net)
own.loadExecutable("executable.poptorch")
assert own.isCompiled()
torch.testing.assert_close(own(x, target)[0], x + 0.5)
own.destroy()

# Two wrappers of one model share its weights.
net = ExampleModelWithLoss()
training = poptorch.trainingModel(net, optimizer=optimizer_of(net))
validation = poptorch.inferenceModel(net)
for steps in range(1, 4):
    training(x, target)
    torch.testing.assert_close(validation(x), x + bias_after(steps))
training.destroy()
validation.destroy()

# Exported, they lose sight of each other.
net = ExampleModelWithLoss()
net.train()
training = poptorch.trainingModel(net, optimizer=optimizer_of(net))
training.compileAndExport("train.poptorch", x, target)
net.eval()
validation = poptorch.inferenceModel(net)
validation.compileAndExport("validation.poptorch", x)
training.destroy()
validation.destroy()

# So the weights are carried over by hand ...
training, validation = poptorch.load("train.poptorch"), poptorch.load("validation.poptorch")
for steps in range(1, 4):
    training(x, target)
    training.copyWeightsToHost()
    validation.load_state_dict(copy.deepcopy(training.model.state_dict()))
    torch.testing.assert_close(validation(x), x + bias_after(steps))
validation.destroy()
training.destroy()

# ... or the second one is made of the first one's model again.
training = poptorch.load("train.poptorch")
validation = poptorch.inferenceModel(training)
validation.loadExecutable("validation.poptorch")
for steps in range(1, 4):
    training(x, target)
    torch.testing.assert_close(validation(x), x + bias_after(steps))

# Caching: the same model compiled again comes from the directory.
caching = poptorch.Options().enableExecutableCaching("cache")
for _ in range(2):
    cached = poptorch.inferenceModel(ExampleModel(), caching.clone())
    assert torch.equal(cached(x), x)
    cached.destroy()
assert os.listdir("cache")
assert poptorch.load.__name__ == "load" and poptorch.__version__.startswith("3.3")
