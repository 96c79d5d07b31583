"""Engines and captured loops compute with the current Python values, however a model or a loss reads them."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import IPUAccelerator, create_ipu_evaluator, create_ipu_trainer
from tests.accelerate_state import forget
from tests.supervised import assert_same_weights, network, task

EPOCHS = 3


class Weight:
    kind = 1.0

    def __init__(self, value):
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Kept(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value


def weigh(loss, weight):
    return loss * weight.value


def objects_in(container):
    """Return a loss that takes its weight from an object in a container, and what changes that."""
    weight = Weight(1.0)
    held = container(weight)
    first = next(iter(held.values() if isinstance(held, dict) else held))
    return (
        lambda p, y: F.cross_entropy(p, y) * next(iter(held.values() if isinstance(held, dict) else held)).value,
        lambda: setattr(first, "value", 0.1),
    )


def as_argument_of_a_helper():
    weight = Weight(1.0)
    return lambda p, y: weigh(F.cross_entropy(p, y), weight), lambda: setattr(weight, "value", 0.1)


def by_another_name():
    weight = Weight(1.0)

    def loss(p, y):
        configuration = weight
        return F.cross_entropy(p, y) * configuration.value

    return loss, lambda: setattr(weight, "value", 0.1)


def by_getattr():
    weight = Weight(1.0)
    return lambda p, y: F.cross_entropy(p, y) * getattr(weight, "val" + "ue"), lambda: setattr(weight, "value", 0.1)


def of_a_partial():
    weight = {"value": 1.0}

    def loss(p, y, weight):
        return F.cross_entropy(p, y) * weight["value"]

    return functools.partial(loss, weight=weight), lambda: weight.update(value=0.1)


def of_a_default():
    weight = [1.0]

    def loss(p, y, weight=weight):
        return F.cross_entropy(p, y) * weight[0]

    return loss, lambda: weight.__setitem__(0, 0.1)


def of_a_librarys_loss():
    loss = nn.SmoothL1Loss(beta=1.0)
    return lambda p, y: loss(p, F.one_hot(y, 3).float()), lambda: setattr(loss, "beta", 0.01)


def in_place_of_a_loss():
    losses = {"now": nn.MSELoss()}
    return lambda p, y: losses["now"](p, F.one_hot(y, 3).float()), lambda: losses.update(now=nn.L1Loss())


def in_place_of_a_variable():
    loss = nn.MSELoss()

    def change():
        nonlocal loss
        loss = nn.L1Loss()

    return lambda p, y: loss(p, F.one_hot(y, 3).float()), change


def of_another_model():
    other = nn.Linear(3, 3)
    return (
        lambda p, y: F.cross_entropy(p, y) + F.mse_loss(p, other.weight.detach().sum(0).to(p.device).expand_as(p)),
        lambda: other.load_state_dict({"weight": torch.ones(3, 3), "bias": torch.zeros(3)}),
    )


def of_a_scheduler():
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    optimizer.step()
    return lambda p, y: F.cross_entropy(p, y) * scheduler.get_last_lr()[0], lambda: scheduler.step()


def of_a_long_list():
    weights = [1.0] * 1000
    return lambda p, y: F.cross_entropy(p, y) * weights[7], lambda: weights.__setitem__(7, 0.1)


def of_a_large_array():
    weights = np.ones(50_000, dtype=np.float32)
    return lambda p, y: F.cross_entropy(p, y) * float(weights[7]), lambda: weights.__setitem__(7, 0.1)


def of_a_class():
    class Own(Weight):
        pass

    weight = Own(1.0)
    return lambda p, y: F.cross_entropy(p, y) * weight.kind, lambda: setattr(Own, "kind", 0.1)


WAYS = {
    "list": lambda: objects_in(lambda weight: [weight]),
    "tuple": lambda: objects_in(lambda weight: (weight,)),
    "dictionary": lambda: objects_in(lambda weight: {"a": weight}),
    **{
        function.__name__: function
        for function in (
            as_argument_of_a_helper,
            by_another_name,
            by_getattr,
            of_a_partial,
            of_a_default,
            of_a_librarys_loss,
            in_place_of_a_loss,
            in_place_of_a_variable,
            of_another_model,
            of_a_scheduler,
            of_a_long_list,
            of_a_large_array,
            of_a_class,
        )
    },
}


def train(create, loss, change):
    model = network()
    trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, change)
    trainer.run(DataLoader(task(), batch_size=16), max_epochs=EPOCHS)
    return model


@pytest.mark.parametrize("way", WAYS)
def test_what_a_loss_reads_is_what_it_is_now(way):
    torch.manual_seed(0)
    expected = train(create_supervised_trainer, *WAYS[way]())
    torch.manual_seed(0)
    assert_same_weights(train(create_ipu_trainer, *WAYS[way]()), expected)


def test_the_trainer_itself_may_be_asked():
    """A loss that is annealed by the epoch, as a loop names its trainer before it has one."""
    models = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        model, named = network(), {}
        trainer = named["trainer"] = create(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            lambda p, y, named=named: F.cross_entropy(p, y) / named["trainer"].state.epoch,
        )
        trainer.run(DataLoader(task(), batch_size=16), max_epochs=EPOCHS)
        models.append(model)
    assert_same_weights(*models)


def swap(model):
    model[1] = nn.Tanh()


def hook(model):
    model[0].register_forward_hook(lambda module, inputs, output: output * 0.5)


def replace_forward(model):
    forward = model.forward
    model.forward = lambda x: forward(x) * 0.5


def append(model):
    model.append(nn.Tanh())


@pytest.mark.parametrize("change", [swap, hook, replace_forward, append])
def test_what_a_model_consists_of_is_what_it_is_now(change):
    """Layers, hooks and functions that a handler puts into it train, and evaluate, from then on."""
    models, predictions = [], []
    for trainer_of, evaluator_of in (
        (create_supervised_trainer, create_supervised_evaluator),
        (create_ipu_trainer, create_ipu_evaluator),
    ):
        model = network()
        trainer = trainer_of(model, torch.optim.SGD(model.parameters(), lr=0.1), F.cross_entropy)
        evaluator = evaluator_of(model)
        trainer.add_event_handler(Events.EPOCH_COMPLETED(once=2), lambda _, model=model: change(model))
        trainer.add_event_handler(
            Events.EPOCH_COMPLETED, lambda _, evaluator=evaluator: evaluator.run(DataLoader(task(), batch_size=16))
        )
        trainer.run(DataLoader(task(), batch_size=16), max_epochs=EPOCHS)
        models.append(model)
        predictions.append(evaluator.state.output[0])
    assert_same_weights(*models)
    torch.testing.assert_close(*predictions)


def test_a_layer_of_a_loss_is_the_one_that_it_has_now():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.MSELoss()

        def forward(self, p, y):
            return self.inner(p, F.one_hot(y, 3).float())

    models = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        loss = Loss()
        models.append(train(create, loss, lambda loss=loss: setattr(loss, "inner", nn.L1Loss())))
    assert_same_weights(*models)


class Configured(nn.Module):
    """Reads a number of its configuration in one of several ways."""

    def __init__(self, read):
        super().__init__()
        self.layers, self.read = network(), read
        self.configuration = Weight(1.0)
        self.stages, self.named = [self.configuration], {"a": self.configuration}

    def forward(self, x):
        return self.layers(x) * self.read(self)


def read_by_another_name(model):
    configuration = model.configuration
    return configuration.value


READS = {
    "name": read_by_another_name,
    "getattr": lambda model: getattr(model.configuration, "value"),  # noqa: B009
    "list": lambda model: model.stages[0].value,
    "dictionary": lambda model: model.named["a"].value,
    "helper": lambda model: weigh(1.0, model.configuration),
    "class": lambda model: type(model.configuration).kind,
}


@pytest.mark.parametrize("way", READS)
def test_captured_loops_follow_what_a_model_reads(way, monkeypatch):
    """In training and in evaluation."""
    models, predictions = [], []
    for native in (True, False):
        forget()
        accelerator = Accelerator(cpu=True) if native else IPUAccelerator()
        torch.manual_seed(0)
        model = Configured(READS[way])
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for number in range(EPOCHS):
            model.configuration.value = 1.0 + number
            monkeypatch.setattr(Weight, "kind", 1.0 + number)
            model.train()
            for x, y in DataLoader(task(), batch_size=16):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                predictions.append(model(x))
        models.append(model)
    assert_same_weights(*models)
    torch.testing.assert_close(predictions[:EPOCHS], predictions[EPOCHS:])


@pytest.mark.parametrize("make", [Weight, Slotted, Kept])
def test_objects_in_a_list_of_a_model_count(make):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.stages = network(), [make(1.0)]

        def forward(self, x):
            x = self.layers(x)
            for stage in self.stages:
                x = x * stage.value
            return x

    models = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        torch.manual_seed(0)
        model = Model()
        trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1), F.cross_entropy)
        trainer.add_event_handler(
            Events.EPOCH_COMPLETED, lambda _, model=model: setattr(model.stages[0], "value", model.stages[0].value / 2)
        )
        trainer.run(DataLoader(task(), batch_size=16), max_epochs=EPOCHS)
        models.append(model)
    assert_same_weights(*models)
