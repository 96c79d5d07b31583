"""Programs compiled by torch.compile's back end: which are, and that their results stay the same.

Inductor takes seconds for the smallest function, so that here traced functions mostly run as they were traced.
"""

from __future__ import annotations

import os
import shutil
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import _inductor, nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.compiler import inductor as compiled
from ignite_ipu.emulator.errors import Error

X, Y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


class Net(nn.Module):
    """Two branches that draw random numbers, a buffer that is written, and a weight that nothing reaches."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, x, labels=None):
        hidden = self.norm(self.first(x))
        hidden = F.dropout(hidden, 0.3, self.training) + F.dropout(hidden.tanh(), 0.5, self.training)
        out = self.last(hidden)
        return out if labels is None else (out, F.cross_entropy(out, labels))


class Prints(Net):
    """A model that does something on the host."""

    def forward(self, x, labels=None):
        return super().forward(poptorch.ipu_print_tensor(x, print_gradient=False), labels)


@pytest.fixture
def switched_on(monkeypatch):
    """The switch is on, inductor's work is left out, and nothing waits for it."""
    functions = []

    def as_traced(module, examples):
        functions.append(module)
        return module

    monkeypatch.setenv("IGNITE_IPU_EMULATOR_COMPILE", "inductor")
    monkeypatch.setenv("CXX", "c++")
    monkeypatch.setattr(compiled, "lowered", as_traced)
    monkeypatch.setattr(compiled, "_in_background", lambda work: work())
    return functions


def options(accumulation=1, iterations=1, replicas=1):
    chosen = poptorch.Options().randomSeed(3).deviceIterations(iterations).replicationFactor(replicas)
    chosen.broadcastBuffers(False).Training.gradientAccumulation(accumulation)
    return chosen


def trained(make_optimizer, chosen, model=Net, steps=4, between=lambda step, executor, optimizer: None):
    """Return everything that a short training returns and leaves behind."""
    torch.manual_seed(0)
    net = model()
    optimizer = make_optimizer(net.parameters())
    executor = poptorch.trainingModel(net, chosen, optimizer)
    found = []
    for step in range(steps):
        found += executor(X + step, Y)
        between(step, executor, optimizer)
    executor.destroy()
    return found + list(net.state_dict().values())


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, two in zip(found, expected):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def both(monkeypatch, *args, **more):
    found = trained(*args, **more)
    monkeypatch.delenv("IGNITE_IPU_EMULATOR_COMPILE")
    return found, trained(*args, **more)


# -- the switch --------------------------------------------------------------------------------------------------------


def test_the_switch_needs_a_known_value_and_a_compiler(monkeypatch):
    monkeypatch.setenv("IGNITE_IPU_EMULATOR_COMPILE", "fast")
    with pytest.raises(Error, match="IGNITE_IPU_EMULATOR_COMPILE must be"):
        poptorch.inferenceModel(Net())(X)
    monkeypatch.setenv("IGNITE_IPU_EMULATOR_COMPILE", "inductor")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Error, match=r"needs a C\+\+ compiler"):
        poptorch.inferenceModel(Net())(X)


_REAL = """
import torch
import ignite_ipu.emulator as poptorch
from ignite_ipu.emulator.compiler import inductor

def losses():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 3), Loss())
    executor = poptorch.trainingModel(model, poptorch.Options().randomSeed(3), torch.optim.Adam(model.parameters()))
    for step in range(4):
        yield executor(torch.ones(8, 4) + step)
        inductor.wait()

class Loss(torch.nn.Module):
    def forward(self, x):
        return poptorch.identity_loss(x.square(), "mean")

expected = torch.stack(list(losses()))
poptorch.compile_steps()
torch.testing.assert_close(torch.stack(list(losses())), expected)
"""


@pytest.mark.skipif(shutil.which("c++") is None or sys.platform != "linux", reason="needs a C++ compiler")
def test_inductor_compiles_a_whole_step_while_it_runs(tmp_path, processes):
    """With the real compiler: its code draws dropout from the device's stream."""
    environment = {**os.environ, "POPTORCH_LOG_LEVEL": "INFO", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = processes.run(["-c", _REAL], env=environment, check=True)
    said = done.stderr + done.stdout
    if hasattr(_inductor, "compile"):  # PyTorch 2.1 brought it; before, nothing is compiled
        assert said.count("torch.compile compiled training in") == 1
    assert ("cannot be compiled" in said) is not hasattr(_inductor, "compile")


# -- inference ---------------------------------------------------------------------------------------------------------


def test_inference_is_compiled_once_and_follows_new_weights(switched_on):
    net = Net().eval()
    executor = poptorch.inferenceModel(net)
    with torch.no_grad():
        torch.testing.assert_close(executor(X), net(X))
        net.last.bias.add_(1.0)
        executor.copyWeightsToDevice()
        torch.testing.assert_close(executor(X), net(X))
    assert len(switched_on) == 1


def test_an_argument_given_twice_is_two_arguments(switched_on):
    """A program that is traced once must not depend on two tensors being the same one."""

    class Difference(nn.Module):
        def forward(self, a, b):
            return a - b

    executor = poptorch.inferenceModel(Difference())
    assert executor(X, X).abs().sum() == 0
    assert torch.equal(executor(X, X + 1), X - (X + 1))


def test_a_returned_weight_or_input_is_a_copy(switched_on):
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            loss = poptorch.identity_loss((self.weight * x).sum(), "sum")
            return loss, self.weight, x

    net = Returns()
    x = torch.ones(2)
    executor = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.5))
    _, weight, given = executor(x)
    executor(x)
    x.zero_()
    assert weight.tolist() == [1.0, 1.0]
    assert given.tolist() == [1.0, 1.0]
    assert net.state_dict()["weight"].tolist() == [0.0, 0.0]


def test_what_acts_on_the_host_is_left_alone(switched_on, caplog, capfd):
    net = Prints().eval()
    with caplog.at_level("INFO", logger="poptorch::python"):
        executor = poptorch.inferenceModel(net)
        executor(X)
        executor(X)
    assert capfd.readouterr().err.count("input") == 2
    assert "cannot be compiled: ipu_print_tensor runs on the host" in caplog.text
    assert not switched_on


def test_a_branch_chosen_by_a_value_is_left_alone(switched_on):
    class Branches(nn.Module):
        def forward(self, x):
            return poptorch.cond(x.sum() > 0, lambda v: v + 1, [x], lambda v: v - 1, [x])[0]

    executor = poptorch.inferenceModel(Branches())
    assert torch.equal(executor(torch.ones(2)), torch.tensor([2.0, 2.0]))
    assert torch.equal(executor(-torch.ones(2)), torch.tensor([-2.0, -2.0]))
    assert not switched_on
