"""Weights that are evaluated and not trained are current after any kind of write."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.deferred import capture_model
from ignite_ipu.session.weights.access import is_watched

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))


def halve(tensor):
    tensor.data.mul_(0.5)


def average(tensor):
    tensor.data = tensor.data * 0.9 + 0.1


def by_numpy(tensor):
    tensor.data.numpy()[...] *= 0.5


def by_method(tensor):
    torch.Tensor.data.__get__(tensor).add_(1)


def in_place(tensor):
    with torch.no_grad():
        tensor.add_(1)


EDITS = [halve, average, by_numpy, by_method, in_place]


def captured(model):
    capture_model(model)

    def evaluate():
        with torch.no_grad():
            return model.eval()(X)

    return evaluate


def engine(model):
    evaluator = create_ipu_evaluator(model)

    def evaluate():
        return evaluator.run([(X, X)]).output[0]

    return evaluate


@pytest.mark.parametrize("evaluates", [captured, engine])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("tensors", [nn.Module.parameters, nn.Module.buffers], ids=["parameters", "buffers"])
def test_evaluations_are_of_the_weights_of_now(evaluates, edit, tensors):
    """PyTorch's own are the truth, for several edits and none in between."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    native = copy.deepcopy(model).eval()
    evaluate = evaluates(model)
    for edits in (0, 1, 0, 2, 1):
        for network in (model, native) if edits else ():
            for tensor in [each for each in tensors(network) if each.is_floating_point()] * edits:
                edit(tensor)
        torch.testing.assert_close(evaluate(), native(X).detach(), rtol=1e-5, atol=1e-6)


def test_memory_that_was_taken_once_may_be_written_ever_after():
    """As a target network's, kept in a list."""
    model = nn.Linear(6, 2)
    evaluate = captured(model)
    evaluate()
    memory = [parameter.data for parameter in model.parameters()]
    for _ in range(3):
        evaluate()
        for each in memory:
            each.mul_(0.5)
        torch.testing.assert_close(evaluate(), nn.functional.linear(X, *memory))


def test_two_models_with_weights_in_common_both_follow():
    """A head alone, and the whole."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    whole, head = create_ipu_evaluator(model), create_ipu_evaluator(model[1])
    features = torch.randn(4, 4)
    for _ in range(3):
        model[1].weight.data.mul_(0.5)
        found = [whole.run([(X, X)]).output[0], head.run([(features, X)]).output[0]]
        model[1].bias.data.add_(1)
        found += [head.run([(features, X)]).output[0], whole.run([(X, X)]).output[0]]
        native = copy.deepcopy(model)
        after = [native[1](features), native(X)]
        native[1].bias.data.sub_(1)
        torch.testing.assert_close(found, [native(X), native[1](features), *after], rtol=1e-5, atol=1e-6)


def test_a_part_of_a_model_that_is_trained_follows():
    """The part's evaluator and the trainer both notice writes before, during and after the training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    native = copy.deepcopy(model)
    features = torch.randn(4, 4)
    part = create_ipu_evaluator(model[1])

    def check():
        for edit in (halve, in_place, by_numpy):
            for network in (model, native):
                edit(network[1].weight)
            expected = native[1](features).detach()
            torch.testing.assert_close(part.run([(features, X)]).output[0], expected, rtol=1e-4, atol=1e-5)

    check()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    optimizer = torch.optim.SGD(native.parameters(), lr=0.1)

    def train():
        trainer.run([(X, X[:, :2])], max_epochs=1)
        nn.functional.mse_loss(native(X), X[:, :2]).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        train()
        check()
        train()
        for network in (model, native):
            halve(network[1].bias)
        train()
    trainer.ipu.close()
    check()
    torch.testing.assert_close(model.state_dict(), native.state_dict())


def test_before_between_and_after_training():
    """Training takes the parameters over, and gives them back."""
    model = nn.Linear(6, 2)
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    evaluator = create_ipu_evaluator(model)

    def check():
        output = evaluator.run([(X, X)]).output[0]
        torch.testing.assert_close(output, nn.functional.linear(X, model.weight, model.bias).detach())

    def edit_and_check():
        check()
        model.weight.data.mul_(0.5)
        check()

    edit_and_check()
    trainer.run([(X, X[:, :2])], max_epochs=2)
    edit_and_check()
    trainer.ipu.stop_training()
    model.weight.data.mul_(0.5)
    edit_and_check()
    trainer.ipu.close()
    assert type(model.weight) is nn.Parameter


def test_copies_and_files_are_ordinary():
    """So is the model, once its session is closed."""
    model = nn.Linear(6, 2)
    engine = create_ipu_evaluator(model)
    engine.run([(X, X)])
    assert is_watched(type(model.weight)) and isinstance(model.weight, nn.Parameter)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), loaded):
        assert type(other.weight) is nn.Parameter and other.weight.requires_grad
        assert torch.equal(other.weight, model.weight)
    assert type(model.state_dict()["weight"]) is torch.Tensor
    engine.ipu.close()
    assert type(model.weight) is nn.Parameter
