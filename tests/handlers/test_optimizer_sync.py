"""`OptimizerSync` in a hand-written PopTorch loop."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Engine, Events
from torch import nn

from ignite_ipu import backend, emulator
from ignite_ipu.errors import OptimizerError
from ignite_ipu.handlers import OptimizerSync
from tests.supervised import assert_same_weights, network


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.model(x), y)


@pytest.fixture
def loop():
    """A model, its optimizer, its executor, and an engine that calls it by hand."""
    poptorch = backend.poptorch()
    model = network()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(WithLoss(model), poptorch.Options(), optimizer)
    engine = Engine(lambda engine, batch: float(executor(*batch)))
    yield model, optimizer, executor, engine
    executor.destroy()


def batches(count=4):
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(8, 6, generator=generator), torch.arange(8) % 3) for _ in range(count)]


def test_a_changed_learning_rate_reaches_the_device_once(loop):
    model, optimizer, executor, engine = loop
    sent = []
    OptimizerSync(executor, optimizer, on_change=lambda: sent.append(engine.state.iteration)).attach(engine)

    @engine.on(Events.ITERATION_COMPLETED(once=2))
    def lower():
        optimizer.param_groups[0]["lr"] = 0.01

    engine.run(batches())
    assert len(sent) == 1
    twin = network()
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)
    for number, (x, y) in enumerate(batches()):
        plain.param_groups[0]["lr"] = 0.1 if number < 2 else 0.01
        plain.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        plain.step()
    assert_same_weights(model, twin)


def test_without_it_the_device_keeps_the_old_rate(loop):
    """The purpose of the handler: PopTorch does not look at the groups by itself."""
    model, optimizer, executor, _ = loop
    first = batches()[0]
    executor(*first)
    before = model.state_dict()["0.weight"].clone()
    optimizer.param_groups[0]["lr"] = 0.0
    executor(*first)
    assert not torch.equal(model.state_dict()["0.weight"], before)


def test_nothing_is_sent_while_nothing_changes(loop):
    _, optimizer, executor, engine = loop
    OptimizerSync(executor, optimizer).attach(engine)
    engine.run(batches())
    uploads = emulator.counters(executor).optimizer_uploads
    engine.run(batches(), max_epochs=3)
    assert emulator.counters(executor).optimizer_uploads == uploads


def test_a_refused_change_leaves_the_old_values(loop):
    _, optimizer, executor, _ = loop
    executor(*batches()[0])
    sync = OptimizerSync(executor, optimizer)
    optimizer.param_groups[0]["momentum"] = 0.9  # was not given, so it is a constant
    with pytest.raises(Exception, match="momentum"):
        sync.sync()
    assert optimizer.param_groups[0]["momentum"] == 0.0
    assert sync.sync() is False
    executor(*batches()[0])
    assert optimizer.state_dict()["ipu_state"] is not None
    executor.detachFromDevice()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_another_loss_scaling_is_refused_where_momentum_would_be_misread(momentum):
    """The device holds it multiplied by the loss scaling of its time."""
    poptorch = backend.poptorch()
    model = network()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, loss_scaling=1.0)
    executor = poptorch.trainingModel(WithLoss(model), poptorch.Options(), optimizer)
    sync = OptimizerSync(executor, optimizer)
    optimizer.loss_scaling = 2.0
    assert sync.sync(), "nothing is on the device yet"
    executor(*batches()[0])
    optimizer.loss_scaling = 64.0
    if momentum:
        with pytest.raises(OptimizerError, match=r"loss_scaling of the SGD changed from 2\.0 to 64\.0"):
            sync.sync()
        assert optimizer.loss_scaling == 2.0
    else:
        assert sync.sync()
    executor.destroy()


@pytest.mark.parametrize("written", ["in place", "another"])
def test_a_refused_tensor_is_the_old_tensor_with_its_old_value(written):
    """An object that refers to it, such as a scheduler, still refers to the optimizer's state."""

    class Refusing:
        def setOptimizer(self, optimizer):
            raise RuntimeError("refused")

    rate, betas = torch.tensor(0.1, dtype=torch.float64), [0.9, 0.99]
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], lr=rate, foreach=False)
    group = optimizer.param_groups[0]
    group["betas"] = betas
    sync = OptimizerSync(Refusing(), optimizer)
    if written == "in place":
        rate.fill_(0.5)
        betas[0] = 0.5
    else:
        group.update(lr=0.5, betas=(0.5, 0.99))
    with pytest.raises(RuntimeError, match="refused"):
        sync.sync()
    assert group["lr"] is rate and float(rate) == 0.1
    assert group["betas"] is betas and betas == [0.9, 0.99]
    assert sync.sync() is False
