"""`WeightSync` with hand-written PopTorch loops."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Engine, Events
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu import IPUConfig, OptionsError, create_ipu_trainer
from ignite_ipu.handlers import WeightSync
from tests.supervised import assert_same_weights, network, pair, task


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.model(x), y)


def test_executors_of_ones_own_are_kept_in_step():
    """An inference executor over the inner model, which PopTorch never refreshes, sees every epoch's weights."""
    model, _ = pair()
    training = poptorch.trainingModel(WithLoss(model), optimizer=poptorch.optim.SGD(model.parameters(), lr=0.5))
    inference = poptorch.inferenceModel(model)
    sync = WeightSync.between(training, inference, model)
    trainer = Engine(lambda engine, batch: training(*batch).item())
    evaluator = Engine(lambda engine, batch: inference(batch[0]))
    sync.attach(trainer, evaluator)
    x, y = task().tensors
    batches = [(x[:32], y[:32]), (x[32:], y[32:])]
    outputs = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        evaluator.run(batches[:1])
        outputs.append(evaluator.state.output)

    trainer.run(batches, max_epochs=3)
    reference, optimizer = pair(lr=0.5)
    for output in outputs:
        for rows, targets in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(reference(rows), targets).backward()
            optimizer.step()
        torch.testing.assert_close(output, reference(x[:32]).detach(), rtol=1e-4, atol=1e-5)
    assert_same_weights(model, reference)
    assert poptorch.counters(training).weight_downloads == 3


def test_without_training_nothing_moves():
    """Evaluating alone uploads the weights when the program is loaded and never again."""
    model = network()
    inference = poptorch.inferenceModel(model)
    sync = WeightSync.between(None, inference, model)
    evaluator = Engine(lambda engine, batch: inference(batch))
    sync.attach(evaluator=evaluator)
    for _ in range(3):
        evaluator.run([task().tensors[0]])
    assert poptorch.counters(inference).weight_uploads == 1


def test_weights_come_to_the_host_at_any_event():
    """Of four epochs every second ends with a copy; a policy that there is not is refused."""
    model, optimizer = pair()
    trainer = create_ipu_trainer(
        model, optimizer, nn.functional.cross_entropy, config=IPUConfig(weight_sync="on demand")
    )
    WeightSync(trainer.ipu.weights, Events.EPOCH_COMPLETED(every=2)).attach(trainer)
    trainer.run([task().tensors], max_epochs=4)
    assert poptorch.counters(trainer.ipu.training.executor).weight_downloads == 2
    with pytest.raises(OptionsError, match=r"no policy 'epochs'\. Did you mean 'epoch'"):
        WeightSync(trainer.ipu.weights, "epochs")
