"""What a model's calls read makes another program when it changes; what a loop only keeps on its model does not."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import threading
import types
import weakref

import pytest
import torch
from ignite.engine import Events
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import IPUAccelerator, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.attribute_reads import is_read, reads_noted
from ignite_ipu.deferred import captured
from ignite_ipu.events import IPUEvents
from tests.accelerate_state import forget
from tests.supervised import assert_same_weights, network, task

BATCHES = list(DataLoader(task(), batch_size=16))
EPOCHS = 3


def factor_of(model):
    return model.factor


class Model(nn.Module):
    """Reads its factor in one of several ways, and keeps what a loop wants to know."""

    def __init__(self, read):
        super().__init__()
        self.layers, self.read, self.factor = network(), read, 1.0
        self.epoch, self.history, self.best = 0, [], None
        self.books = types.SimpleNamespace(updates=0)

    def forward(self, x):
        return self.layers(x) * self.read(self)

    def keep(self, loss):
        self.history.append(loss)
        self.best = loss if self.best is None else min(self.best, loss)
        self.books.updates += 1

    @property
    def doubled(self):
        return 2 * self.factor


def by_method(model):
    return 1.0 if model.training else model.factor


WAYS = {
    "attribute": lambda model: model.factor,
    "name": lambda model: getattr(model, "".join(["fac", "tor"])),
    "dictionary": lambda model: model.__dict__["factor"],
    "variables": lambda model: vars(model)["factor"],
    "getter": operator.attrgetter("factor"),
    "function": factor_of,
    "property": lambda model: model.doubled,
    "copy": lambda model: copy.copy(model).factor,
    "missing": lambda model: getattr(model, "later", 1.0),
    "evaluation": lambda model: 1.0 if model.training else model.factor,
    "training": lambda model: model.factor if model.training else 1.0,
    "gradients": lambda model: model.factor if torch.is_grad_enabled() else 1.0,
}


def run(model, prepare, changes):
    """Train and evaluate by a loop; return the last predictions and the model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, backward = prepare(model, optimizer)
    for epoch in range(EPOCHS):
        model.train()
        model.epoch = epoch
        if changes:
            model.factor = model.later = 1.0 + epoch
        for x, y in BATCHES:
            loss = nn.functional.cross_entropy(model(x), y)
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            model.keep(loss.item())
        model.eval()
        with torch.no_grad():
            predictions = model(BATCHES[0][0])
    return predictions, model


def natively(model, optimizer):
    return model, optimizer, torch.Tensor.backward


def on_device(model, optimizer):
    forget()
    accelerator = IPUAccelerator()
    return (*accelerator.prepare(model, optimizer), accelerator.backward)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_read_counts_however_it_is_read(way):
    """The numbers are those of PyTorch while a loop changes the attribute."""
    torch.manual_seed(0)
    model = Model(WAYS[way])
    reference = copy.deepcopy(model)
    expected, reference = run(reference, natively, changes=True)
    predictions, model = run(model, on_device, changes=True)
    torch.testing.assert_close(predictions, expected)
    assert_same_weights(model, reference)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_loop_keeps_on_its_model_does_not(way):
    """There is one training program, and one for evaluation, except where code looks at all attributes."""
    _, model = run(Model(WAYS[way]), on_device, changes=False)
    capture = captured(model)
    assert len(model.history) == EPOCHS * len(BATCHES)
    several = way in ("dictionary", "variables", "copy")
    assert (capture.training.compilations > 1) == several
    assert (len(capture.session.evaluations) > 1) == several


def test_engines_compile_once():
    """Handlers keep books on the model, and change what it reads, too."""
    model = Model(WAYS["attribute"])
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
    evaluator = create_ipu_evaluator(model)
    compiled = []
    trainer.add_event_handler(IPUEvents.COMPILE_STARTED, lambda: compiled.append(trainer.state.iteration))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: model.keep(trainer.state.output))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(BATCHES))
    trainer.run(BATCHES, max_epochs=EPOCHS)
    assert len(compiled) == 2
    model.factor = 2.0
    trainer.run(BATCHES, max_epochs=EPOCHS + 1)
    assert len(compiled) == 4


class Settings:
    """What a model reads beside its attributes; nothing can refer to it weakly."""

    __slots__ = ("factor", "inner", "model")

    def __init__(self, model, inner=None):
        self.model, self.inner, self.factor = model, inner, 1.0


@pytest.mark.parametrize(
    ("hold", "read"),
    [
        (lambda settings: settings, lambda model: model.held.factor),
        (lambda settings: {"of": [settings]}, lambda model: model.held["of"][0].factor),
        (lambda settings: types.SimpleNamespace(of=settings), lambda model: model.held.of.factor),
        (lambda settings: Settings(None, inner=settings), lambda model: model.held.inner.factor),
        (lambda settings: functools.partial(pow, settings), lambda model: model.held.args[0].factor),
    ],
)
def test_objects_with_slots_count_and_do_not_keep_the_model(hold, read):
    """What they hold is in the program, and they are freed with the model that they hold."""

    def train():
        model = Model(read)
        settings = Settings(model)
        model.held = hold(settings)
        trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
        compiled = []
        trainer.add_event_handler(IPUEvents.COMPILE_STARTED, lambda: compiled.append(trainer.state.iteration))
        trainer.run(BATCHES)
        settings.factor = 2.0
        trainer.run(BATCHES, max_epochs=2)
        trainer.run(BATCHES, max_epochs=3)
        assert compiled == [1, len(BATCHES) + 1]
        trainer.ipu.close()
        return weakref.ref(model)

    model = train()
    gc.collect()
    assert model() is None


def test_reads_are_noted_for_each_module_and_purpose():
    """Before any call was looked at, all that a module has may be read."""
    first, second = Model(WAYS["attribute"]), Model(WAYS["attribute"])
    assert is_read(first, "history", True)
    with reads_noted(first, training=True):
        first(BATCHES[0][0])
        second(BATCHES[0][0])
    assert is_read(first, "factor", True)
    assert not is_read(first, "history", True)
    assert is_read(first, "history", False)
    assert is_read(first, "history", None)
    assert is_read(second, "history", True)
    assert "__getattribute__" not in vars(Model)


def test_a_call_that_fails_notes_nothing():
    model = Model(lambda model: 1 / 0)
    with pytest.raises(ZeroDivisionError), reads_noted(model, training=True):
        model(BATCHES[0][0])
    assert is_read(model, "history", True)
    assert "__getattribute__" not in vars(Model)


def test_threads_take_turns():
    """Models of one class are called in two threads, and the class is as it was afterwards."""
    models = [Model(WAYS["attribute"]) for _ in range(4)]

    def call(model):
        for _ in range(20):
            with reads_noted(model, training=True):
                model(BATCHES[0][0])

    threads = [threading.Thread(target=call, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(is_read(model, "factor", True) and not is_read(model, "history", True) for model in models)
    assert "__getattribute__" not in vars(Model)
