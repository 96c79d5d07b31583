"""Batches and outputs that handlers keep stay what they were, also when the loader reuses its memory."""

from __future__ import annotations

import torch
from ignite.engine import Events
from ignite.handlers import EpochOutputStore
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import backend, create_ipu_evaluator, create_ipu_trainer
from tests.supervised import pair, task


def test_an_asynchronous_loader_does_not_overwrite_what_handlers_keep():
    model, optimizer = pair()
    mode = backend.poptorch().DataLoaderMode.Async
    trainer = create_ipu_trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        output_transform=lambda x, y, y_pred, loss: (y_pred, y),
        loader_mode=mode,
        device_iterations=2,
    )
    store = EpochOutputStore()
    store.attach(trainer, "outputs")
    kept = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: kept.append(trainer.state.batch[0]))
    trainer.run(DataLoader(task(), batch_size=4), max_epochs=1)
    x, y = task().tensors
    assert torch.equal(torch.cat(kept), x)
    assert torch.equal(torch.cat([labels for _, labels in trainer.state.outputs]), y)
    trainer.ipu.close()


def test_a_poptorch_loader_of_the_user_s_own_is_treated_alike():
    poptorch = backend.poptorch()
    model, _ = pair()
    options = poptorch.Options()
    evaluator = create_ipu_evaluator(model, options=options)
    loader = poptorch.DataLoader(options, task(), batch_size=8, mode=poptorch.DataLoaderMode.Async)
    kept = []
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: kept.append(evaluator.state.output[1]))
    evaluator.run(loader)
    assert torch.equal(torch.cat(kept), task().tensors[1])
    loader.terminate()
    evaluator.ipu.close()
