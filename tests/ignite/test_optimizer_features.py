"""Usual features of optimizers: clipping, averaging, scaling, freezing, groups, and moving between devices."""

from __future__ import annotations

import copy

import pytest
import torch
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel
from torch.utils.data import DataLoader

from ignite_ipu import OptimizerError, backend, create_ipu_trainer, emulator
from ignite_ipu.handlers import EMA
from tests.supervised import assert_same_weights, network, task

_LOSS = nn.CrossEntropyLoss()
_CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def loader(batch_size=8):
    return DataLoader(task(), batch_size=batch_size)


def ipu(model, optimizer, **kwargs):
    return create_ipu_trainer(model, optimizer, _LOSS, **kwargs)


def native(model, optimizer, after_backward=lambda: None):
    def step(engine, batch):
        model.train()
        optimizer.zero_grad()
        loss = _LOSS(model(batch[0]), batch[1])
        loss.backward()
        after_backward()
        optimizer.step()
        return loss.item()

    engine = create_supervised_trainer(model, optimizer, _LOSS)
    engine._process_function = step
    return engine


OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "SGD with momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "SGD with Nesterov momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.8, nesterov=True),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.01, weight_decay=1e-3),
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=0.01),
    "RMSprop": lambda weights: torch.optim.RMSprop(weights, lr=0.005, momentum=0.5),
    "centered RMSprop": lambda weights: torch.optim.RMSprop(weights, lr=0.005, centered=True),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_run_moves_to_an_ipu_and_back_as_if_uninterrupted(make):
    """Native for an epoch, on an IPU for one, native again: with momenta and step counts, the run of three epochs."""
    whole = network()
    native(whole, make(whole.parameters())).run(loader(), max_epochs=3)

    model = network()
    optimizer = make(model.parameters())
    native(model, optimizer).run(loader(), max_epochs=1)
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    model = network()
    optimizer = make(model.parameters())
    trainer = ipu(model, optimizer)
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(checkpoint[1])
    trainer.run(loader(), max_epochs=1)
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    trainer.ipu.close()

    model = network()
    optimizer = make(model.parameters())
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(checkpoint[1])
    native(model, optimizer).run(loader(), max_epochs=1)
    assert_same_weights(model, whole, **_CLOSE)


def test_the_same_objects_can_be_used_natively_after_close():
    whole = network()
    native(whole, torch.optim.Adam(whole.parameters(), lr=0.01)).run(loader(), max_epochs=2)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = ipu(model, optimizer)
    trainer.run(loader(), max_epochs=1)
    trainer.ipu.close()
    native(model, optimizer).run(loader(), max_epochs=1)
    assert_same_weights(model, whole, **_CLOSE)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "decayed SGD"])
def test_clipping_by_norm_is_torch_s(name):
    """`max_grad_norm` clips as clip_grad_norm_ does, and the threshold is low enough to matter."""
    make = OPTIMIZERS.get(name, lambda parameters: torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1))
    clipped, model = network(), network()
    plain = make(clipped.parameters())
    norms = []
    native(clipped, plain, lambda: norms.append(float(nn.utils.clip_grad_norm_(clipped.parameters(), 0.1)))).run(
        loader(), max_epochs=2
    )
    assert min(norms) > 0.1
    trainer = ipu(model, make(model.parameters()), max_grad_norm=0.1)
    trainer.run(loader(), max_epochs=2)
    # torch adds 1e-6 to the norm it divides by.
    assert_same_weights(model, clipped, rtol=1e-3, atol=1e-4)
    trainer.ipu.close()


def test_clipping_is_refused_where_the_device_has_none():
    model = network()
    with pytest.raises(OptimizerError, match="max_grad_norm does not apply to RMSprop"):
        ipu(model, OPTIMIZERS["RMSprop"](model.parameters()), max_grad_norm=1.0)
    for arguments in ({}, {"config": {"variable": ("momentum",)}}):
        momentum = 0.0 if arguments else 0.9
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        with pytest.raises(OptimizerError, match=rf"with momentum={momentum} an IPU's SGD clips the velocity"):
            ipu(model, optimizer, max_grad_norm=1.0, **arguments)


def test_an_average_of_every_update_is_exact():
    model, average, plain = network(), network(), network()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    engine = native(plain, optimizer)

    @engine.on(Events.ITERATION_COMPLETED)
    def update():
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), plain.parameters()):
                mean.mul_(0.9).add_(weight, alpha=0.1)

    engine.run(loader(), max_epochs=2)
    trainer = ipu(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ema = EMA(model, momentum=0.1)
    ema.attach(trainer)
    trainer.run(loader(), max_epochs=2)
    assert_same_weights(ema.model, average)
    trainer.ipu.close()


def test_an_average_at_a_cadence_decays_for_every_update_and_downloads_once_per_look():
    """Looks after 3 and 6 of 8 calls and at the end: each keeps 0.9**n of the average for the n updates since."""
    model = network()
    trainer = ipu(model, torch.optim.SGD(model.parameters(), lr=0.1), device_iterations=2)
    ema = EMA(model, momentum=0.1, every=3)
    ema.attach(trainer)
    expected = copy.deepcopy(dict(network().named_parameters()))
    calls = []

    @trainer.on(Events.ITERATION_COMPLETED(once=[3, 6, 8]))
    def look():
        kept = 0.9 ** (2 * (trainer.state.iteration - (calls[-1] if calls else 0)))
        calls.append(trainer.state.iteration)
        with torch.no_grad():
            for name, weight in model.state_dict().items():
                expected[name].mul_(kept).add_(weight, alpha=1 - kept)

    trainer.run(loader(batch_size=4), max_epochs=1)
    assert calls == [3, 6, 8]
    # Reading for the test, right after the average has looked, downloads nothing more.
    assert emulator.counters(trainer.ipu.training.executor).weight_downloads == 3
    for name, value in ema.model.named_parameters():
        torch.testing.assert_close(value, expected[name], msg=name)
    trainer.ipu.close()


def test_an_average_survives_a_checkpoint():
    def train(epochs, saved=None):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = ipu(model, optimizer)
        ema = EMA(model, momentum=0.2, every=5)
        ema.attach(trainer)
        objects = {"model": model, "optimizer": optimizer, "trainer": trainer, "ema": ema}
        for name, state in (saved or {}).items():
            objects[name].load_state_dict(state)
        trainer.run(loader(), max_epochs=epochs)
        states = copy.deepcopy({name: thing.state_dict() for name, thing in objects.items()})
        trainer.ipu.close()
        return ema.model, states

    whole, _ = train(3)
    resumed, _ = train(3, train(1)[1])
    assert_same_weights(resumed, whole)


def test_swa_at_epoch_ends():
    def run(side):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = ipu(model, optimizer) if side == "ipu" else native(model, optimizer)
        averaged = AveragedModel(model)
        schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)

        @engine.on(Events.EPOCH_COMPLETED(after=1))
        def average():
            averaged.update_parameters(model)
            schedule.step()

        engine.run(loader(), max_epochs=5)
        if side == "ipu":
            engine.ipu.close()
        return averaged

    assert_same_weights(run("ipu"), run("native"), **_CLOSE)


@pytest.mark.parametrize("how", ["static", "scheduled", "automatic"])
def test_loss_scaling_does_not_change_float32_results(how):
    plain, model = network(), network()
    native(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)).run(loader(), max_epochs=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = backend.poptorch().Options()
    if how == "automatic":
        options.Training.setAutomaticLossScaling(True)
    trainer = ipu(model, optimizer, options=options, loss_scaling=64.0)
    sent = []
    if how == "scheduled":
        trainer.add_event_handler(Events.EPOCH_COMPLETED(once=1), lambda: setattr(optimizer, "loss_scaling", 1024.0))
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda: sent.append(trainer.ipu.link.conversion.optimizer.loss_scaling)
        )
    trainer.run(loader(), max_epochs=2)
    assert sent == ([] if how != "scheduled" else [64.0] * 8 + [1024.0] * 8)
    assert_same_weights(model, plain, **_CLOSE)
    trainer.ipu.close()


def test_layers_are_frozen_and_unfrozen_between_epochs(caplog):
    """In PyTorch a frozen layer keeps its momentum and goes on with it; so it does here, for one compilation each."""

    def run(side):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        engine = ipu(model, optimizer) if side == "ipu" else native(model, optimizer)

        @engine.on(Events.EPOCH_COMPLETED)
        def switch():
            optimizer.zero_grad()
            model[0].requires_grad_(engine.state.epoch != 1)

        engine.run(loader(), max_epochs=3)
        if side == "ipu":
            engine.ipu.close()
        return model

    assert_same_weights(run("ipu"), run("native"), **_CLOSE)
    messages = [record.getMessage() for record in caplog.records if "compiled again" in record.getMessage()]
    assert len(messages) == 2
    assert "2 frozen (model.0.weight, model.0.bias)" in messages[0] and "2 unfrozen" in messages[1]


def _freeze(model, optimizer, back):
    optimizer.zero_grad()
    model[0].requires_grad_(back)


def _end_momentum(model, optimizer, back):
    optimizer.param_groups[0]["momentum"] = 0.9 if back else 0.0


@pytest.mark.parametrize("change", [_freeze, _end_momentum])
def test_buffers_that_are_not_needed_for_a_while_survive_a_release_of_the_ipus(change):
    """In eager PyTorch the momentum of a frozen layer, or of momentum 0, stays where it is and is taken up again."""

    def run(side):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        engine = ipu(model, optimizer) if side == "ipu" else native(model, optimizer)
        engine.run(loader(), max_epochs=1)
        if side == "ipu":
            engine.ipu.release()
        change(model, optimizer, back=False)
        engine.run(loader(), max_epochs=2)
        kept = len(optimizer.state_dict()["state"])
        change(model, optimizer, back=True)
        engine.run(loader(), max_epochs=3)
        if side == "ipu":
            engine.ipu.close()
        return model, kept

    (model, kept), (plain, kept_natively) = run("ipu"), run("native")
    assert kept == kept_natively == 4
    assert_same_weights(model, plain, **_CLOSE)


@pytest.mark.parametrize(
    ("groups", "loss_scaling"), [("one group", (1.0, 1.0)), ("a group of its own", (64.0, 1024.0))]
)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_layer_that_is_trained_later_starts_without_a_word_of_poptorch(kind, groups, loss_scaling, caplog):
    """It has no state and no hyper-parameters on the device yet, as PopTorch would say with a warning."""

    def run(side):
        model = network()
        model[0].requires_grad_(False)
        parts = [{"params": list(part.parameters())} for part in (model[0], model[2])]
        optimizer = OPTIMIZERS[kind](model.parameters() if groups == "one group" else parts)
        engine = native(model, optimizer) if side == "native" else ipu(model, optimizer, loss_scaling=loss_scaling[0])

        @engine.on(Events.EPOCH_COMPLETED(once=1))
        def unfreeze():
            optimizer.zero_grad()
            model[0].requires_grad_(True)
            optimizer.param_groups[0]["lr"] *= 0.5

        @engine.on(Events.EPOCH_STARTED(once=2))
        def scale():
            if loss_scaling[0] != loss_scaling[1]:
                optimizer.loss_scaling = loss_scaling[1]

        engine.run(loader(), max_epochs=3)
        if side == "ipu":
            engine.ipu.close()
        return model

    assert_same_weights(run("ipu"), run("native"), **_CLOSE)
    assert [record.getMessage() for record in caplog.records if "state lacks" in record.getMessage()] == []


def test_a_layer_that_is_in_no_group_cannot_be_unfrozen():
    """The device would train it with default values; a native optimizer would not train it at all."""
    model = network()
    model[0].requires_grad_(False)
    trainer = ipu(model, torch.optim.SGD(model[2].parameters(), lr=0.1))
    trainer.run(loader(), max_epochs=1)
    model[0].requires_grad_(True)
    trainer.state.max_epochs = None
    with pytest.raises(OptimizerError, match=r"model.0.weight"):
        trainer.run(loader(), max_epochs=1)
    trainer.ipu.close()


def test_groups_have_their_own_rates_and_decays():
    def run(side):
        model = network()
        groups = [
            {"params": model[0].parameters(), "lr": 0.2, "weight_decay": 0.01},
            {"params": [model[2].weight]},
            {"params": [model[2].bias], "lr": 0.0},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.5)
        engine = ipu(model, optimizer) if side == "ipu" else native(model, optimizer)
        engine.add_event_handler(Events.EPOCH_COMPLETED(once=1), lambda: optimizer.param_groups[2].update(lr=0.3))
        engine.run(loader(), max_epochs=2)
        if side == "ipu":
            engine.ipu.close()
        return model

    assert_same_weights(run("ipu"), run("native"), **_CLOSE)


def test_lamb_of_poptorch_trains_through_the_factories():
    """Compared with the published update, written out for one parameter after the other."""
    model, plain = network(), network()
    lamb = backend.poptorch().optim.LAMB(model.parameters(), lr=0.02, weight_decay=0.01)
    trainer = ipu(model, lamb)
    trainer.run(loader(), max_epochs=1)
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in plain.named_parameters()}
    for step, (x, y) in enumerate(loader(), start=1):
        plain.zero_grad()
        _LOSS(plain(x), y).backward()
        with torch.no_grad():
            for name, weight in plain.named_parameters():
                first, second = moments[name]
                first.mul_(0.9).add_(weight.grad, alpha=0.1)
                second.mul_(0.999).add_(weight.grad.square(), alpha=0.001)
                update = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8) + 0.01 * weight
                trust = weight.norm() / update.norm() if weight.norm() > 0 and update.norm() > 0 else 1.0
                weight.sub_(0.02 * trust * update)
    assert_same_weights(model, plain, **_CLOSE)
    trainer.ipu.close()
