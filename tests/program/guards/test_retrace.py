"""A changed value that a model's calls read makes another program; one that a loop only keeps on its model does not."""

from __future__ import annotations

import array
import contextvars
import copy
import cProfile
import functools
import gc
import multiprocessing
import operator
import os
import types
import weakref

import pytest
import torch
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUAccelerator, SessionError, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.deferred import CaptureError, captured
from ignite_ipu.program.guards.retrace import MOST_CALLS
from ignite_ipu.session.hooks import IPUEvents
from tests.accelerate_state import forget
from tests.supervised import assert_same_weights, network, task

BATCHES = list(DataLoader(task(), batch_size=16))
EPOCHS = 3


def factor_of(model):
    return model.factor


class Model(nn.Module):
    """Reads its factor in one of several ways, and keeps a value for the loop."""

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
    """There is one training program, and one for evaluation."""
    _, model = run(Model(WAYS[way]), on_device, changes=False)
    capture = captured(model)
    assert len(model.history) == EPOCHS * len(BATCHES)
    assert capture.compilations == 1
    assert len(capture.session.evaluations) == 1


class Settings:
    """A configuration that code gets at without an attribute of the model."""

    only = None

    def __init__(self):
        self.factor = 1.0

    @classmethod
    def get(cls):
        cls.only = cls.only or cls()
        return cls.only


@functools.lru_cache(maxsize=None)
def cached_settings():
    return Settings()


SETTINGS, DICTIONARY, CONTEXT = Settings(), {"factor": 1.0}, contextvars.ContextVar("factor", default=1.0)
SEEN, WEAK, PROXY = types.MappingProxyType(DICTIONARY), weakref.ref(SETTINGS), weakref.proxy(SETTINGS)
ARRAY, BYTES, SHARED = array.array("d", [1.0]), bytearray(8), multiprocessing.Value("d", 1.0)
SEVERAL = multiprocessing.Array("d", [1.0])
VARIABLE = "IGNITE_IPU_TEST_FACTOR"


def write_variable(factor):
    os.environ[VARIABLE] = str(factor)


# How a forward reads a factor, and how a loop writes it.
SOURCES = {
    "one instance": (lambda: Settings.get().factor, lambda factor: setattr(Settings.get(), "factor", factor)),
    "a weak reference": (lambda: WEAK().factor, lambda factor: setattr(SETTINGS, "factor", factor)),
    "a weak proxy": (lambda: PROXY.factor, lambda factor: setattr(SETTINGS, "factor", factor)),
    "a view of a dictionary": (lambda: SEEN["factor"], lambda factor: DICTIONARY.update(factor=factor)),
    "an array": (lambda: ARRAY[0], lambda factor: operator.setitem(ARRAY, 0, factor)),
    "bytes": (lambda: float(BYTES[0]), lambda factor: operator.setitem(BYTES, 0, int(factor))),
    "a shared value": (lambda: SHARED.value, lambda factor: setattr(SHARED, "value", factor)),
    "shared values": (lambda: SEVERAL[0], lambda factor: operator.setitem(SEVERAL, 0, factor)),
    "a context": (CONTEXT.get, CONTEXT.set),
    "a context's, in a function": (lambda: CONTEXT.get(), CONTEXT.set),
    "the environment": (lambda: float(os.environ[VARIABLE]), write_variable),
    "the environment, if there": (lambda: float(os.environ.get(VARIABLE, "1")), write_variable),
    "the environment, by function": (lambda: float(os.getenv(VARIABLE)), write_variable),
}


class Sourced(nn.Module):
    """Reads its factor from outside."""

    def __init__(self, read):
        super().__init__()
        self.layers, self.read = network(), read

    def forward(self, x):
        return self.layers(x) * self.read()


def prepared_with(read):
    """Return a captured model that reads its factor so, its optimizer, and the loss."""
    cached_settings().factor = 1.0
    model = Sourced(read)
    return on_device(model, torch.optim.SGD(model.parameters(), lr=0.0))


def outputs(model, write, evaluate):
    """Return the results for factors that change."""
    found = []
    for factor in (1.0, 2.0, 3.0):
        write(factor)
        found.append(evaluate(model))
    return found


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("how", ["training", "evaluation", "engine"])
def test_what_is_read_counts_wherever_it_is(source, how, monkeypatch):
    """Objects that functions return, memory that is shared, variables of contexts and of the environment."""
    monkeypatch.setenv(VARIABLE, "1")
    read, write = SOURCES[source]
    x = BATCHES[0][0]
    native = Sourced(read)
    model = copy.deepcopy(native)
    expected = outputs(native, write, lambda model: model(x).detach())
    if how == "engine":
        evaluator = create_ipu_evaluator(model)
        found = outputs(model, write, lambda model: evaluator.run([BATCHES[0]]).output[0])
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        model, optimizer, backward = on_device(model, optimizer)

        def train(model):
            output = model(x)
            backward(output.sum())
            optimizer.step()
            optimizer.zero_grad()
            return output.detach() + 0

        def evaluate(model):
            with torch.no_grad():
                return model.eval()(x)

        found = outputs(model, write, train if how == "training" else evaluate)
    torch.testing.assert_close(found, expected)


def test_what_no_code_names_is_refused_in_a_loop_that_went_on():
    """Before a checkpoint is made of it; from the beginning of a pass over the data on it is the current value."""
    model, optimizer, backward = prepared_with(lambda: cached_settings().factor)

    def train():
        backward(model(BATCHES[0][0]).sum())
        optimizer.step()
        optimizer.zero_grad()

    train()
    model.eval().train()
    cached_settings().factor = 2.0
    train()
    train()
    model.state_dict()
    cached_settings().factor = 3.0
    for _ in range(3):
        train()
    place = r"aten\.mul\.Tensor at .*test_retrace\.py:\d+ has .*3\.0.*, and had .*2\.0"
    with pytest.raises(CaptureError, match=rf"of Sourced does not name has changed .*{place}.*Up to 3 calls"):
        model.state_dict()


def test_what_no_code_names_is_looked_for_after_many_calls():
    model, _, _ = prepared_with(lambda: cached_settings().factor)
    model.eval()
    with torch.no_grad():
        model(BATCHES[0][0])
        cached_settings().factor = 4.0
        for _ in range(MOST_CALLS - 1):
            model(BATCHES[0][0])
        with pytest.raises(CaptureError, match=rf"Up to {MOST_CALLS} calls"):
            model(BATCHES[0][0])


@pytest.mark.parametrize("event", [Events.EPOCH_COMPLETED, Events.EPOCH_STARTED])
def test_engines_compute_with_what_changes_between_epochs(event, caplog):
    """Without its name in the code."""
    models = []
    for create in (create_supervised_trainer, create_ipu_trainer):
        torch.manual_seed(0)
        model = Sourced(lambda: cached_settings().factor)
        cached_settings().factor = 1.0
        trainer = create(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
        change = lambda engine: setattr(cached_settings(), "factor", 1.0 + engine.state.epoch)  # noqa: E731
        trainer.add_event_handler(event, change)
        trainer.run(BATCHES, max_epochs=EPOCHS)
        models.append(model)
    assert_same_weights(*models)
    assert "does not name has changed" in caplog.text and "calls had" not in caplog.text


def test_engines_refuse_at_the_end_of_an_epoch_a_value_that_changed_within_it():
    model = Sourced(lambda: cached_settings().factor)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
    change = lambda: setattr(cached_settings(), "factor", cached_settings().factor + 1)  # noqa: E731
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), change)
    with pytest.raises(SessionError, match=f"Up to {len(BATCHES)} calls since then had the previous values"):
        trainer.run(BATCHES, max_epochs=1)


def test_nothing_is_said_of_what_stays(caplog):
    """Weights, running statistics and dropout's numbers change, and are no constants."""
    model = nn.Sequential(network(), nn.BatchNorm1d(3), nn.Dropout())
    trainer = create_ipu_trainer(model, torch.optim.Adam(model.parameters()), nn.functional.cross_entropy)
    evaluator = create_ipu_evaluator(model)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(BATCHES))
    trainer.run(BATCHES, max_epochs=EPOCHS)
    assert "compiled again" not in caplog.text
    assert [poptorch.counters(each.executor).compiles for each in (trainer.ipu.training, *trainer.ipu.evaluations)] == [
        1,
        1,
    ]


def test_an_instance_that_the_first_call_makes_counts(monkeypatch):
    """It is the one of all later calls."""
    monkeypatch.setattr(Settings, "only", None)
    _, model = run(Model(lambda model: Settings.get().factor), on_device, changes=False)
    assert captured(model).compilations == 1
    x, Settings.only.factor = BATCHES[0][0], 3.0
    with torch.no_grad():
        torch.testing.assert_close(model(x), 3 * model.layers(x))


class Box:
    """Objects that a function makes anew in each call, and objects that refer to themselves."""

    def __init__(self, value):
        self.value, self.itself = value, self


def made(value):
    return Box(value)


def test_objects_that_a_call_makes_compile_nothing_again():
    model = Model(lambda model: made(1.0).itself.value)
    _, model = run(model, on_device, changes=False)
    capture = captured(model)
    assert capture.compilations == 1
    assert len(capture.session.evaluations) == 1


def test_engines_compile_once():
    """Handlers keep books on the model, and change values that it reads, too."""
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


class Slotted:
    """Values that a model reads beside its attributes; nothing can refer to them weakly."""

    __slots__ = ("factor", "inner", "model")

    def __init__(self, model, inner=None):
        self.model, self.inner, self.factor = model, inner, 1.0


@pytest.mark.parametrize(
    ("hold", "read"),
    [
        (lambda settings: settings, lambda model: model.held.factor),
        (lambda settings: {"of": [settings]}, lambda model: model.held["of"][0].factor),
        (lambda settings: types.SimpleNamespace(of=settings), lambda model: model.held.of.factor),
        (lambda settings: Slotted(None, inner=settings), lambda model: model.held.inner.factor),
        (lambda settings: functools.partial(pow, settings), lambda model: model.held.args[0].factor),
    ],
)
def test_objects_with_slots_count_and_do_not_keep_the_model(hold, read):
    """Their contents are in the program, and they are freed with the model that they hold."""

    def train():
        model = Model(read)
        settings = Slotted(model)
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


def test_a_program_runs_under_a_profiler():
    """As with `python -m cProfile train.py`; the profiler sees the code after the first step, too."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        run(Model(WAYS["attribute"]), on_device, changes=False)
        factor_of(Model(None))
    finally:
        profile.disable()
    assert any(entry.code is factor_of.__code__ for entry in profile.getstats())
