"""Blocks: three ways to write them, where they put operators, the strategies they give, and the rules they keep."""

from __future__ import annotations

import copy

import poptorch
import torch
from torch import nn


class Layers(nn.Module):
    """Three linear layers and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x, target=None):
        x = self.three(torch.relu(self.two(torch.relu(self.one(x)))))
        return x if target is None else (x, nn.functional.cross_entropy(x, target))


class Blocks(Layers):
    """With scopes: all of the model is in one."""

    def forward(self, x, target=None):
        with poptorch.Block("first", ipu_id=0):
            x = torch.relu(self.one(x))
        with poptorch.Block("second", ipu_id=1):
            x = torch.relu(self.two(x))
            x = self.three(x)
            return x if target is None else (x, nn.functional.cross_entropy(x, target))


class Functions(Layers):
    """With decorated functions."""

    @poptorch.BlockFunction("first", ipu_id=0)
    def front(self, x):
        return torch.relu(self.one(x))

    @poptorch.BlockFunction("second", ipu_id=1)
    def back(self, x, target):
        x = self.three(torch.relu(self.two(x)))
        return x if target is None else (x, nn.functional.cross_entropy(x, target))

    def forward(self, x, target=None):
        return self.back(self.front(x), target)


def begun(model):
    """Mark the layers of a model written without any thought of IPUs."""
    assert poptorch.BeginBlock(model.one, "first", ipu_id=0) is model.one
    poptorch.BeginBlock(layer_to_call=model.two, user_id="second", ipu_id=1)
    return model


def updated(net, options):
    """Return the weights after one call of three accumulated micro-batches."""
    options.Training.gradientAccumulation(3)
    model = poptorch.trainingModel(net, options, poptorch.optim.SGD(net.parameters(), lr=0.5))
    model(x, target)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    model.destroy()
    return state


torch.manual_seed(0)
start = Layers().state_dict()
x, target = torch.randn(6, 4), torch.randint(0, 2, (6,))
plain = Layers()
plain.load_state_dict(copy.deepcopy(start))
optimizer = torch.optim.SGD(plain.parameters(), lr=0.5)
plain(x, target)[1].backward()
optimizer.step()

for kind, mark in [(Blocks, None), (Functions, None), (Layers, begun)]:
    for strategy in [
        poptorch.PipelinedExecution(),
        poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu),
        poptorch.PipelinedExecution(poptorch.Stage("first").ipu(0), poptorch.Stage("second").ipu(1)),
        poptorch.PipelinedExecution("first", "second"),
        poptorch.PipelinedExecution(poptorch.Stage("first", "second").ipu(0)),
        poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement),
        poptorch.ShardedExecution(poptorch.Stage("first"), poptorch.Stage("second")),
    ]:
        net = kind()
        net.load_state_dict(copy.deepcopy(start))
        if mark is not None:
            mark(net)
        torch.testing.assert_close(
            updated(net, poptorch.Options().setExecutionStrategy(strategy)), dict(plain.state_dict())
        )

# Marks show, can be set only once, and come off.
marked = begun(Layers())
assert "BeginBlock(user_id=second, ipu_id=1) Linear" in poptorch.module_repr(marked)
try:
    poptorch.BeginBlock(marked.two, ipu_id=3)
except poptorch.Error as error:
    assert "already been assigned to a block" in str(error)
else:
    raise AssertionError("a layer was marked twice")
poptorch.removeBlocks(marked)
assert "BeginBlock" not in poptorch.module_repr(marked)
poptorch.BeginBlock(marked.two, ipu_id=3)

# A call in the middle of forward may open a block too, for everything after it.


class Begins(Layers):
    """Opens blocks without closing them."""

    def forward(self, x):
        poptorch.Block.useAutoId()
        poptorch.Block.start(ipu_id=0)
        x = torch.relu(self.one(x))
        poptorch.Block.start(ipu_id=1)
        return self.three(torch.relu(self.two(x)))


net = Begins()
pipelined = poptorch.inferenceModel(net, poptorch.Options().deviceIterations(2))
torch.testing.assert_close(pipelined(x), Layers.forward(net, x).detach())

# Rules, and programs that break them. Outside a traced model blocks do nothing.
assert torch.equal(Blocks.forward(net, x), Layers.forward(net, x))


class Returns(Layers):
    """Goes from IPU 0 to IPU 1 and back."""

    def forward(self, x):
        for layer, ipu in [(self.one, 0), (self.two, 1), (self.three, 0)]:
            with poptorch.Block(ipu_id=ipu):
                x = layer(x)
        return x


class Uncovered(Layers):
    """Leaves an operator between two blocks."""

    def forward(self, x):
        with poptorch.Block("first", ipu_id=0):
            x = self.one(x)
        x = torch.relu(x)
        with poptorch.Block("second", ipu_id=1):
            return self.three(self.two(x))


class ThreeIpus(Layers):
    """Needs a number of IPUs that cannot be reserved."""

    def forward(self, x):
        for ipu, layer in enumerate([self.one, self.two, self.three]):
            with poptorch.Block(ipu_id=ipu):
                x = layer(x)
        return x


def outcome(net, options):
    try:
        result = poptorch.inferenceModel(net, options.deviceIterations(3))(x)
    except poptorch.Error as error:
        return str(error)
    plainly = net.three(net.two(net.one(x)))
    torch.testing.assert_close(result, plainly.detach())
    return "ran"


assert outcome(Returns(), poptorch.Options()) != "ran"
increasing = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
assert outcome(Returns(), poptorch.Options().setExecutionStrategy(increasing)) == "ran"
assert "No active Block" in outcome(Uncovered(), poptorch.Options())
assert "specifies the use of" in outcome(ThreeIpus(), poptorch.Options())
assert outcome(ThreeIpus(), poptorch.Options().autoRoundNumIPUs(True)) == "ran"
for listed in [("first", "first"), (poptorch.Stage("first", "second"), "second")]:
    try:
        poptorch.PipelinedExecution(*listed)
    except AssertionError as error:
        assert "more than one stage" in str(error)
    else:
        raise AssertionError("a block was put into two stages")
