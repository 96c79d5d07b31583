"""The link between a user's optimizer and one on a device, whose executor has its say."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import create_ipu_trainer, ipu_prepare
from ignite_ipu.handlers import Gradients
from tests.supervised import assert_same_weights, network, task, train_natively

CROSS_ENTROPY = nn.CrossEntropyLoss()


def loader():
    return DataLoader(task(), batch_size=8)


def trained_natively(make, epochs=1):
    model = network()
    optimizer = make(model.parameters())
    for _ in range(epochs):
        train_natively(model, optimizer, loader())
    return model, optimizer


def assert_same_state(optimizer, expected):
    torch.testing.assert_close(optimizer.state_dict()["state"], expected.state_dict()["state"])


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.mark.parametrize("make", [momentum, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_the_state_is_the_newest_after_every_step(make):
    """It is read from the executor each time, not from PopTorch's record."""
    model, twin = network(), network()
    optimizer, expected = make(model.parameters()), make(twin.parameters())
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)

    @trainer.on(Events.ITERATION_COMPLETED)
    def compare(engine):
        x, y = engine.state.batch
        expected.zero_grad()
        CROSS_ENTROPY(twin(x), y).backward()
        expected.step()
        assert_same_state(optimizer, expected)

    trainer.run(loader())


@pytest.mark.parametrize("make", [momentum, torch.optim.Adam, torch.optim.RMSprop])
def test_weights_that_the_loss_does_not_depend_on_have_no_state(make):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x) + self.unused(x).detach()

    torch.manual_seed(0)
    model = Half()
    twin = copy.deepcopy(model)
    optimizer, expected = make(model.parameters()), make(twin.parameters())
    x, y = torch.randn(4, 2), torch.randn(4, 2)
    nn.functional.mse_loss(twin(x), y).backward()
    expected.step()
    create_ipu_trainer(model, optimizer, nn.MSELoss()).run([(x, y)])
    assert set(expected.state_dict()["state"]) == {0, 1}
    assert_same_state(optimizer, expected)


@pytest.mark.parametrize("make", [momentum, torch.optim.Adam, torch.optim.RMSprop])
def test_weights_that_only_some_losses_depend_on_count_their_own_steps(make):
    """Also after the state was loaded again, and where only torch counts steps."""

    def loop(prepared):
        torch.manual_seed(0)
        body, head = nn.Linear(2, 3), nn.Linear(3, 1)
        model = nn.Sequential(body, head)
        optimizer = make(model.parameters())
        if prepared:
            ipu_prepare(optimizer, model)
        seen, saved = [], None
        for number in (0, 1, 0, 0, 1, 1):
            optimizer.zero_grad()
            x = torch.randn(4, 2)
            loss = model(x).pow(2).mean() if number else (model(x) * 0).sum().detach() + body(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            seen.append(copy.deepcopy(optimizer.state_dict()["state"]))
            if saved is not None:
                optimizer.load_state_dict({**optimizer.state_dict(), "state": saved})
            saved = seen[-1]
        return seen

    torch.testing.assert_close(loop(True), loop(False), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shared", [False, True])
def test_a_changed_loss_scaling_trains_as_none_would(shared):
    """PyTorch knows none; on the device the velocities are multiplied by it, on their way and while they wait there."""
    model = network()
    optimizer = momentum(model.parameters())
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY, loss_scaling=128.0, config={"share_ipus": shared})
    scalings = iter([128.0, 2.0, 2.0, 1024.0, 0.5, 64.0, 64.0, 1.0] * 2)

    @trainer.on(Events.ITERATION_STARTED)
    def change():
        optimizer.loss_scaling = next(scalings)
        if trainer.state.iteration == 6:
            trainer.ipu.release()

    trainer.run(loader(), max_epochs=2)
    twin, expected = trained_natively(momentum, epochs=2)
    assert_same_weights(model, twin)
    assert_same_state(optimizer, expected)


def test_a_value_that_poptorch_refuses_leaves_everything_in_reach():
    """The state is the trained one, training goes on with the former value, and the IPUs are given back."""
    model = network()
    optimizer = momentum(model.parameters())
    trainer = create_ipu_trainer(model, optimizer, CROSS_ENTROPY)
    trainer.run(loader())
    batch = task().tensors[0][:8], task().tensors[1][:8]
    optimizer.param_groups[0]["lr"] = -1.0
    for _ in range(2):
        with pytest.raises(poptorch.Error, match="Negative lr"):
            trainer.ipu.train(*batch)
    assert_same_state(optimizer, trained_natively(momentum)[1])
    optimizer.param_groups[0]["lr"] = 0.05
    trainer.run(loader(), max_epochs=2)
    trainer.ipu.close()
    assert_same_weights(model, trained_natively(momentum, epochs=2)[0])


MAXIMIZING = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=0.01, maximize=True),
    lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1, maximize=True),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01, maximize=True),
]


def score(y_pred, y):
    """The value to maximise: the mean logarithm of the right class's share."""
    return -nn.functional.cross_entropy(y_pred, y)


@pytest.mark.parametrize("make", MAXIMIZING)
def test_a_score_is_maximised(make):
    """As PyTorch does; its value and its gradients have their own sign."""
    model, twin = network(), network()
    optimizer, expected = make(model.parameters()), make(twin.parameters())
    trainer = create_ipu_trainer(model, optimizer, score, gradient_accumulation_steps=2)
    Gradients().attach(trainer)
    losses, gradients = [], []

    @trainer.on(Events.ITERATION_COMPLETED)
    def keep(engine):
        losses.append(engine.state.output)
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])

    trainer.run(loader(), max_epochs=2)
    batches, native = [*loader(), *loader()], []
    for number in range(0, len(batches), 2):
        expected.zero_grad()
        values = [score(twin(x), y) / 2 for x, y in batches[number : number + 2]]
        for value in values:
            value.backward()
        native.append(sum(values).item())
        torch.testing.assert_close(gradients[number // 2], [parameter.grad for parameter in twin.parameters()])
        expected.step()
    assert losses == pytest.approx(native, rel=1e-4)
    assert native[-1] > native[0]
    assert_same_weights(model, twin)
    assert_same_state(optimizer, expected)


def test_a_captured_loop_maximises():
    results = []
    for prepare in (lambda *objects: None, ipu_prepare):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=True)
        prepare(model, optimizer)
        values = []
        for x, y in loader():
            optimizer.zero_grad()
            value = score(model(x), y)
            value.backward()
            optimizer.step()
            values.append(value.item())
        results.append((model, values))
    (native, expected), (model, found) = results
    assert found == pytest.approx(expected, rel=1e-4)
    assert_same_weights(model, native)
