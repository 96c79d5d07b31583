"""`DeviceSwap`: two executors of one model on the same IPUs, in a loop of one's own."""

from __future__ import annotations

import torch
from ignite.engine import Engine, Events
from torch import nn

from ignite_ipu import backend
from ignite_ipu.handlers import DeviceSwap
from tests.handlers.test_optimizer_sync import WithLoss, batches
from tests.supervised import network


def test_both_never_hold_ipus_at_once_and_evaluation_sees_the_newest_weights():
    poptorch = backend.poptorch()
    model = network()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(WithLoss(model), poptorch.Options(), optimizer)
    inference = poptorch.inferenceModel(model, poptorch.Options())
    trainer = Engine(lambda engine, batch: float(training(*batch)))
    evaluator = Engine(lambda engine, batch: inference(batch[0]))
    DeviceSwap(training, inference).attach(trainer, evaluator)
    held, agrees = [], []

    def look():
        held.append((training.isAttachedToDevice(), inference.isAttachedToDevice()))

    trainer.add_event_handler(Events.ITERATION_COMPLETED, look)
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, look)

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        evaluator.run(batches(1))
        expected = torch.func.functional_call(network(), dict(model.state_dict()), batches(1)[0][0])
        agrees.append(torch.allclose(evaluator.state.output, expected, atol=1e-6))

    trainer.run(batches(2), max_epochs=3)
    assert agrees == [True] * 3
    assert held == [(True, False), (True, False), (False, True)] * 3
    twin = network()
    plain = torch.optim.SGD(twin.parameters(), lr=0.1)
    for x, y in batches(2) * 3:
        plain.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        plain.step()
    torch.testing.assert_close(model.state_dict()["0.weight"], twin.state_dict()["0.weight"])
    training.destroy()
    inference.destroy()
