"""Python values that a model reads: engines give the result of eager PyTorch, or raise."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

import ignite_ipu.emulator as poptorch
from ignite_ipu import SessionError, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.program.guards.python_state import PythonState
from ignite_ipu.program.guards.retrace import Retrace
from ignite_ipu.session.hooks import SessionFollower
from tests.supervised import assert_same_weights, network, task


class Annealed(nn.Module):
    """A network whose output is scaled by a number, a list and a tensor that others may change."""

    def __init__(self):
        super().__init__()
        self.inner, self.dropout = network(), nn.Dropout(0.0)
        self.scale, self.powers, self.mask = 1.0, [1, 1, 1], torch.ones(3)

    def forward(self, x):
        weights = torch.tensor([self.scale**power for power in self.powers])
        return self.dropout(self.inner(x)) * weights * self.mask.to(x.device)


def anneal_number(model, step):
    model.scale = 1 / step


def anneal_list(model, step):
    model.scale, model.powers[step % 3] = 0.5, step


def anneal_tensor(model, step):
    model.mask[step % 3] *= 0.5


def anneal_layer(model, step):
    model.dropout.p = float(step % 2)


def trained(create_trainer, create_evaluator, anneal):
    """Return a model trained for two epochs, annealed after each iteration and evaluated after each epoch."""
    model = Annealed()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    trainer = create_trainer(model, optimizer, nn.functional.cross_entropy)
    evaluator = create_evaluator(model)
    predictions = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), lambda: anneal(model, trainer.state.iteration))
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: predictions.append(evaluator.state.output[0]))
    loader = DataLoader(task(), batch_size=16)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader))
    trainer.run(loader, max_epochs=2)
    return model, predictions


@pytest.mark.parametrize("anneal", [anneal_number, anneal_list, anneal_tensor, anneal_layer])
def test_annealed_attributes_train_and_evaluate_as_natively(anneal, caplog):
    native, expected = trained(create_supervised_trainer, create_supervised_evaluator, anneal)
    model, predictions = trained(create_ipu_trainer, create_ipu_evaluator, anneal)
    for ours, theirs in zip(predictions, expected):
        torch.testing.assert_close(ours, theirs)
    assert_same_weights(model, native)
    names = {record.args[0] for record in caplog.records if "have changed" in record.message}
    assert names and names <= {"scale", "powers", "powers, scale", "scale, powers", "mask", "dropout.p"}
    assert "minutes" in caplog.text


MARGIN = 0.0


class Margin(nn.Module):
    """A loss with a number of its own."""

    def __init__(self):
        super().__init__()
        self.weight = 1.0

    def forward(self, y_pred, y):
        return self.weight * nn.functional.cross_entropy(y_pred - MARGIN * nn.functional.one_hot(y, 3), y)


@pytest.mark.parametrize("as_function", [False, True])
def test_annealed_losses_train_as_natively(as_function, monkeypatch):
    """A loss's attributes, globals and closures."""

    def weights(create_trainer):
        loss, weight = Margin(), 1.0
        model = network()

        def function(y_pred, y):
            return weight * loss(y_pred, y)

        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer = create_trainer(model, optimizer, function if as_function else loss)

        @trainer.on(Events.ITERATION_COMPLETED(once=1))
        def change_global():
            monkeypatch.setitem(globals(), "MARGIN", 1.0)

        @trainer.on(Events.ITERATION_COMPLETED(once=2))
        def change_own():
            nonlocal weight
            loss.weight = weight = 3.0

        trainer.run(DataLoader(task(), batch_size=16))
        monkeypatch.setitem(globals(), "MARGIN", 0.0)
        return model

    assert_same_weights(weights(create_ipu_trainer), weights(create_supervised_trainer))


def test_attributes_that_stay_compile_once(caplog):
    """Values that are set to the same again, and attributes that no forward has seen, change nothing."""
    model = Annealed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_ipu_trainer(model, optimizer, nn.functional.cross_entropy)

    @trainer.on(Events.ITERATION_COMPLETED)
    def set_again():
        model.scale, model.powers, model.seen = 1.0, [1, 1, 1], trainer.state.iteration

    trainer.run(DataLoader(task(), batch_size=16), max_epochs=2)
    assert poptorch.counters(trainer.ipu.training.executor).compiles == 1
    assert "changed" not in caplog.text


class Counting(nn.Module):
    """Scales by the number of its calls."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.calls = nn.Linear(6, 3), nn.BatchNorm1d(3), 0

    def forward(self, x):
        self.calls += 1
        return self.norm(self.inner(x)) / self.calls


class Caching(Counting):
    """Sets something up in its first call."""

    def forward(self, x):
        self.calls = self.calls or 3
        return self.norm(self.inner(x)) / self.calls


def test_engines_refuse_a_forward_that_counts_its_calls():
    """A trainer before its first update, and an evaluator."""
    model, loader = Counting(), DataLoader(task(), batch_size=16)
    before = [weight.clone() for weight in model.parameters()]
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy)
    for engine in (trainer, create_ipu_evaluator(model)):
        with pytest.raises(SessionError, match=r"Counting\.forward changes Python values .*\(calls\).*a buffer"):
            engine.run(loader)
    assert all(map(torch.equal, before, model.parameters()))


class Refusing(SessionFollower):
    """Keeps the reasons for which models would be refused."""

    def __init__(self):
        self.reasons = []

    def refuse_frozen(self, reason):
        self.reasons.append(reason)


@pytest.mark.parametrize("kind", [Counting, Caching])
def test_only_values_that_every_call_changes_are_refused(kind):
    """And looking for it leaves statistics and random states alone."""
    model, native = kind(), kind()
    native.load_state_dict(model.state_dict())
    settings = (nn.functional.cross_entropy,)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), *settings)
    follower = Refusing()
    trainer.ipu.hooks.follow_by(follower)
    before = torch.get_rng_state()
    loader = DataLoader(task(), batch_size=16, generator=torch.Generator())
    trainer.run(loader, max_epochs=1)
    assert torch.equal(torch.get_rng_state(), before)
    refused = {reason.endswith("in place.") and "(calls)" in reason for reason in follower.reasons}
    assert refused == ({True} if kind is Counting else set())
    create_supervised_trainer(native, torch.optim.SGD(native.parameters(), lr=0.1), *settings).run(loader)
    if kind is Caching:
        torch.testing.assert_close(model.norm.running_mean, native.norm.running_mean)
        assert_same_weights(model.inner, native.inner)


def changed_by(model, change):
    """Return the names of the values that every call of a model changes, if they begin with `change`."""
    x = torch.ones(2, 6)

    def call(recorder):
        change()
        with recorder:
            return model(x)

    return Retrace(call, lambda: PythonState(model)).begin(PythonState(model))


def test_names_of_what_every_call_changes():
    """Values that the first call sets up change in that call alone."""
    model = Annealed()
    model.steps = itertools.count()
    assert changed_by(model, lambda: setattr(model, "scale", 2.0)) == []
    assert changed_by(model, lambda: setattr(model, "scale", model.scale + 1)) == ["scale"]
    assert changed_by(model, lambda: setattr(model, f"number {next(model.steps)}", 1)) == ["new ones"]


@pytest.mark.parametrize("used", [True, False])
def test_asking_for_the_time_is_reported_where_the_numbers_depend_on_it(used):
    """And where that is."""
    model = nn.Dropout()
    model.register_forward_hook(lambda *call: call[2] * (time.perf_counter_ns() if used else 1.0))
    changed = changed_by(model, lambda: None)
    assert len(changed) == used
    if used:
        assert changed[0].startswith("values computed from the time or from random bytes, or from objects that no")
        assert "aten.mul" in changed[0] and "test_python_state.py:" in changed[0]


def test_a_number_of_another_type_is_another_value():
    """By a float a layer of integers computes something else."""
    model = Annealed()
    state = PythonState(model)
    for before, now in ((1, 1.0), (1, True), (0.0, False)):
        model.scale = before
        values = state.values()
        model.scale = now
        assert state.changed(values) == ["scale"]


def test_an_object_in_the_memory_of_a_former_one_is_another():
    """A loop that makes a new mask for each step has one at the same address soon."""
    model = Annealed()
    state = PythonState(model)
    seen = []
    for _ in range(20):
        model.mask = torch.ones(3)
        assert state.values() not in seen
        seen.append(state.values())


def test_large_models_are_asked_for_what_pytorch_tells_of_nobody_in_turns():
    """All else counts in the next call: modes, rates, hooks, modules. A `forward` put into a layer does a bit later."""
    model = nn.Sequential(*[nn.ReLU() for _ in range(1000)], nn.Dropout(0.1))
    session = create_ipu_evaluator(model).ipu  # which follows the model's input
    state = PythonState(model)
    before, modes = state.values(), state.training()
    assert state.complete and state.values() is before
    model[500].eval()  # from which it computes nothing
    assert state.training() is modes
    model[-1].eval()
    assert state.training() != modes
    model[-1].p = 0.2
    assert state.values() != before
    for change in (
        lambda: model[500].register_forward_hook(print),
        lambda: model.append(nn.ReLU()),
        lambda: model[500].register_module("inner", nn.ReLU()),
    ):
        change()
        assert not state.complete
        state = PythonState(model)
        assert state.complete
    model[500].forward = torch.sigmoid
    assert not all(state.complete for _ in range(32))
    session.close()


class OwnNorm(nn.BatchNorm1d):
    """A user's layer that computes by the code of PyTorch's."""


SETTINGS = {
    "a number that was whole": (lambda: nn.BatchNorm1d(3, momentum=0), "momentum", 0.1),
    "a number of a derived class": (lambda: OwnNorm(3), "momentum", 0),
    "a flag": (lambda: nn.BatchNorm1d(3), "track_running_stats", False),
    "a name": (lambda: nn.GELU(), "approximate", "tanh"),
    "sizes": (lambda: nn.Conv1d(1, 1, 3), "stride", (2,)),
    "a whole number": (lambda: nn.Softmax(1), "dim", 0),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings_of_a_librarys_layer_count(case):
    make, name, value = SETTINGS[case]
    layer = make()
    state = PythonState(nn.Sequential(layer))
    before = state.values()
    assert state.values() is before
    setattr(layer, name, value)
    assert state.changed(before) == [f"0.{name}"]


def test_numbers_that_no_code_of_a_librarys_layer_reads_do_not_count():
    layer = nn.Linear(3, 4)
    state = PythonState(nn.Sequential(layer))
    before = state.values()
    layer.out_features = 5
    assert state.values() is before
