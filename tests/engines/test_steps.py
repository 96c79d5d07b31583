"""Around its device call a step acts as Ignite's steps do: modules are in the same modes at any time."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Events, _prepare_batch, create_supervised_evaluator, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import IPUEvents, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.engines.averages import create_ipu_averages_evaluator
from ignite_ipu.program.module_state import modes_of
from tests.supervised import task


def normalised():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Sequential(nn.Dropout(0.0), nn.Linear(8, 3)))


def watched(model, seen):
    """Return a `prepare_batch` that notes modes."""

    def prepare_batch(*args, **kwargs):
        seen.append(modes_of(model))
        return _prepare_batch(*args, **kwargs)

    return prepare_batch


def run(make_trainer, make_evaluator, handlers):
    """Train and evaluate by turns; return the modes and host's outputs that were seen, and the model."""
    model, seen = normalised(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = make_trainer(model, optimizer, nn.CrossEntropyLoss(), prepare_batch=watched(model, seen))
    evaluator = make_evaluator(model, prepare_batch=watched(model, seen))
    loader = DataLoader(task(32), batch_size=8)

    def sample():
        with torch.no_grad():
            seen.append((modes_of(model), round(model(task().tensors[0][:2])[0, 0].item(), 4)))

    for engine, event, handler in handlers(model):
        {"trainer": trainer, "evaluator": evaluator}[engine].add_event_handler(event, handler)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader))
    evaluator.add_event_handler(Events.COMPLETED, sample)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, sample)
    trainer.run(loader, max_epochs=3)
    sample()
    return seen, model


class HeldNorm(nn.Sequential):
    """A model whose own `train` keeps its normalisation as it is."""

    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.parametrize(
    "handlers",
    [
        lambda model: [],
        lambda model: [("trainer", Events.EPOCH_STARTED, lambda: model.train())],
        lambda model: [("trainer", Events.ITERATION_STARTED, lambda: model[1].eval())],
        lambda model: [("trainer", Events.COMPLETED, lambda: model.eval())],
        lambda model: [("evaluator", Events.ITERATION_STARTED, lambda: model.train())],
    ],
    ids=["none", "train() in epochs", "a layer in evaluation mode", "eval() at the end", "train() in evaluations"],
)
def test_modules_are_in_the_modes_of_ignites_steps(handlers):
    """Each step sets them before it prepares its batch, whatever handlers and other engines have set."""
    native, reference = run(create_supervised_trainer, create_supervised_evaluator, handlers)
    compiled = []

    def with_count(model):
        return [*handlers(model), ("trainer", IPUEvents.COMPILE_COMPLETED, lambda: compiled.append(1))]

    ours, model = run(create_ipu_trainer, create_ipu_evaluator, with_count)
    for mine, theirs in zip(ours, native):
        assert mine[0] == theirs[0]
        assert mine[1] == pytest.approx(theirs[1], abs=2e-4)
    assert len(ours) == len(native)
    torch.testing.assert_close(model[1].running_mean, reference[1].running_mean)
    assert len(compiled) == 2


def test_a_models_own_train_method_says_what_its_modes_are():
    found = []
    for make in (create_supervised_trainer, create_ipu_trainer):
        model, seen = HeldNorm(*normalised()), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainer = make(model, optimizer, nn.CrossEntropyLoss(), prepare_batch=watched(model, seen))
        trainer.run(DataLoader(task(32), batch_size=8), max_epochs=2)
        found.append((seen, model.state_dict()))
    (native, expected), (ours, weights) = found
    assert ours == native
    assert native[0][:3] == [True, True, False]
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value)


def test_a_loss_stays_in_its_mode():
    """Ignite's step sets the mode of the model alone."""

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.9)

        def forward(self, y_pred, y):
            return nn.functional.cross_entropy(self.drop(y_pred), y)

    outputs = []
    for make in (create_supervised_trainer, create_ipu_trainer):
        model, loss = normalised(), Loss().eval()
        trainer = make(model, torch.optim.SGD(model.parameters(), 0.1), loss)
        outputs.append(trainer.run(DataLoader(task(32), batch_size=8)).output)
        assert not any(modes_of(loss))
    assert outputs[1] == pytest.approx(outputs[0], rel=1e-4)


def test_layers_that_replace_others_are_set_too():
    """A handler puts in a layer that is in training mode, between evaluations."""
    found = []
    for make in (create_supervised_evaluator, create_ipu_evaluator):
        model, modes = normalised(), []
        evaluator = make(model)
        evaluator.add_event_handler(Events.COMPLETED, lambda engine, *of: of[1].append(modes_of(of[0])), model, modes)
        outputs = []
        for layer in (nn.Dropout(0.5), nn.Dropout(0.25)):
            model[2][0] = layer
            outputs.append(evaluator.run(DataLoader(task(8), batch_size=8)).output[0])
            layer.train()
            outputs.append(evaluator.run(DataLoader(task(8), batch_size=8)).output[0])
        found.append((modes, outputs))
    (native, expected), (ours, outputs) = found
    assert ours == native == [[False] * 6] * 4
    torch.testing.assert_close(outputs, expected)


def test_averages_are_of_a_model_in_evaluation_mode():
    model, seen = normalised(), []
    averages = {"largest": lambda y_pred, y: y_pred.amax(1)}
    evaluator = create_ipu_averages_evaluator(model, averages, prepare_batch=watched(model, seen))
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: model.train())
    evaluator.run(DataLoader(task(32), batch_size=8), max_epochs=2)
    assert seen == [[False] * 6] * 8
