"""Phased execution: stages and phases by name, serial and parallel, on the IPUs that each form allows."""

from __future__ import annotations

import copy

import poptorch
import torch
from torch import nn

# Two stages of one phase run beside each other; one stage of two blocks runs them one after the other.
side_by_side = poptorch.Phase(poptorch.Stage("A"), poptorch.Stage("B"))
one_by_one = poptorch.Phase(poptorch.Stage("A", "B"))
assert [stage.blocks for stage in side_by_side.stages] == [("A",), ("B",)]
assert [stage.blocks for stage in one_by_one.stages] == [("A", "B")]
assert poptorch.Phase("A", "B").stage(0).blocks == ("A", "B")

PHASES = 3


class Net(nn.Module):
    """Two branches, which meet at the end; each layer's block is named after its phase and its side."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(5, 5) for _ in range(2)) for _ in range(PHASES))

    def forward(self, x, target=None):
        sides = [x, x]
        for phase, layers in enumerate(self.layers):
            for side, layer in enumerate(layers):
                with poptorch.Block(f"phase{phase}_side{side}"):
                    sides[side] = torch.relu(layer(sides[side]))
        with poptorch.Block(f"phase{PHASES - 1}_side1"):
            out = sides[0] + sides[1]
            return out if target is None else (out, nn.functional.mse_loss(out, target))


def phases():
    return [poptorch.Phase(poptorch.Stage(f"phase{n}_side0"), poptorch.Stage(f"phase{n}_side1")) for n in range(PHASES)]


def serial():
    strategy = poptorch.SerialPhasedExecution(*phases())
    for n in range(PHASES):
        strategy.phase(n).ipus(0, 1)
    return strategy


def parallel():
    strategy = poptorch.ParallelPhasedExecution(*phases())
    for n in range(PHASES):
        strategy.phase(n).ipus(*((0, 2) if n % 2 == 0 else (1, 3)))
    return strategy


torch.manual_seed(0)
start = Net()
x, target = torch.randn(4, 5), torch.randn(4, 5)
plain = copy.deepcopy(start)
optimizer = torch.optim.SGD(plain.parameters(), lr=0.3)
plain(x, target)[1].backward()
optimizer.step()

strategies = [serial(), parallel(), serial().useSeparateBackwardPhase(True), parallel().sendTensorsOffChipAfterFwd()]
for liveness in poptorch.Liveness:
    strategies.append(serial().setTensorsLiveness(liveness))
for strategy in strategies:
    net = copy.deepcopy(start)
    opts = poptorch.Options().setExecutionStrategy(strategy)
    model = poptorch.trainingModel(net, opts, poptorch.optim.SGD(net.parameters(), lr=0.3))
    model(x, target)
    torch.testing.assert_close(dict(net.state_dict()), dict(plain.state_dict()))
    model.destroy()

# Blocks may be listed by their names alone: one phase each.
named = poptorch.SerialPhasedExecution(
    [f"phase0_side{side}" for side in range(2)],
    poptorch.Phase(*[f"phase1_side{side}" for side in range(2)]),
    [poptorch.Stage(*[f"phase2_side{side}" for side in range(2)])],
)
for n in range(PHASES):
    named.phase(n).ipus(0)
result = poptorch.inferenceModel(start, poptorch.Options().setExecutionStrategy(named))(x)
torch.testing.assert_close(result, start(x).detach())

# Even phases run on even IPUs, odd ones on odd IPUs.
wrong = parallel()
wrong.phase(1).ipus(0, 2)
try:
    poptorch.inferenceModel(start, poptorch.Options().setExecutionStrategy(wrong))(x)
except poptorch.Error as error:
    assert "phases must run" in str(error), error
else:
    raise AssertionError("an odd phase ran on even IPUs")
for mistake in [
    poptorch.SerialPhasedExecution,
    lambda: poptorch.Phase("A", poptorch.Stage("B")),
    lambda: side_by_side.ipus(0, 1, 2),
    lambda: serial().phase(-1),
]:
    try:
        mistake()
    except AssertionError:
        continue
    raise AssertionError("a mistake passed")
