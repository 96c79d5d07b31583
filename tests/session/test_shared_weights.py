"""Models with weights in common: the others evaluate and train on with the weights that one has trained."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_evaluator, create_ipu_trainer, emulator


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(8, 4), torch.randint(2, (8,))


def classifier():
    return nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))


def test_evaluators_of_a_part_and_of_a_wrapper_use_the_newest_weights(batch):
    model = classifier()
    wrapper = nn.Sequential(model, nn.Softmax(1))
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss())
    evaluators = [(create_ipu_evaluator(module), module) for module in (model[0], wrapper)]
    for _ in range(2):
        trainer.run([batch], max_epochs=1)
        for evaluator, module in evaluators:
            evaluator.run([batch])
            torch.testing.assert_close(evaluator.state.output[0], module(batch[0]))


def test_a_part_and_the_whole_are_trained_in_turn(batch):
    whole = classifier()
    plain = copy.deepcopy(whole)
    pairs = [(whole, plain), (whole[0], plain[0])]
    optimizers = [tuple(torch.optim.SGD(model.parameters(), lr=0.5) for model in pair) for pair in pairs]
    trainers = [
        create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
        for (model, _), (optimizer, _) in zip(pairs, optimizers)
    ]
    for turn in (0, 1, 1, 0, 1):
        trainers[turn].run([batch], max_epochs=1)
        model, optimizer = pairs[turn][1], optimizers[turn][1]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(whole.state_dict()[name], tensor)


def test_a_trainer_that_ended_leaves_its_weights(batch):
    model = classifier()
    evaluator = create_ipu_evaluator(model[0])
    evaluator.run([batch])
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss())
    trainer.run([batch], max_epochs=1)
    trainer.ipu.close()
    del trainer
    evaluator.run([batch])
    torch.testing.assert_close(evaluator.state.output[0], model[0](batch[0]))


def test_nothing_is_copied_while_nobody_else_trains(batch):
    model = classifier()
    trainer = create_ipu_trainer(model, torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss())
    evaluator = create_ipu_evaluator(model[0])
    trainer.run([batch], max_epochs=1)
    evaluator.run([batch])
    before = emulator.counters()
    evaluator.run([batch], max_epochs=1)
    trainer.run([batch, batch], max_epochs=1)
    spent = emulator.counters() - before
    assert (spent.weight_uploads, spent.weight_downloads) == (0, 1)  # the one at the end of the training run
