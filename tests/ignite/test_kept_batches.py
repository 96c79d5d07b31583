"""Batches and outputs that handlers keep stay the same, also when the loader reuses its memory."""

from __future__ import annotations

import torch
from ignite.engine import Events
from ignite.handlers import EpochOutputStore
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import backend, create_ipu_evaluator, create_ipu_trainer
from ignite_ipu.engines.loaders import Loaders
from ignite_ipu.session.resolved import Resolved
from tests.supervised import pair, task


def test_an_asynchronous_loader_does_not_overwrite_what_handlers_keep():
    model, optimizer = pair()
    mode = backend.poptorch().DataLoaderMode.Async
    trainer = create_ipu_trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        output_transform=lambda x, y, y_pred, loss: (y_pred, y),
        config={"loader_mode": mode},
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


def test_an_asynchronous_accessor_of_the_user_s_own_is_treated_alike():
    poptorch = backend.poptorch()
    model, _ = pair()
    options = poptorch.Options()
    evaluator = create_ipu_evaluator(model, options=options)
    accessor = poptorch.AsynchronousDataAccessor(poptorch.DataLoader(options, task(), batch_size=8))
    kept = []
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda: kept.append(evaluator.state.batch[1]))
    evaluator.run(accessor)
    assert torch.equal(torch.cat(kept), task().tensors[1])
    accessor.terminate()
    evaluator.ipu.close()


def test_batches_are_copied_only_where_memory_may_be_reused():
    """Public properties of the loader decide: its type, and the mode that this library set."""
    poptorch = backend.poptorch()
    mode = poptorch.DataLoaderMode
    native, options = DataLoader(task(), batch_size=8), poptorch.Options()
    for wanted, copied in ((None, False), (mode.Sync, False), (mode.Async, True)):
        loaders = Loaders(Resolved.of(options, True), mode=wanted)
        made = loaders.swap(native)
        assert loaders.reuses_memory(made) == copied
        if copied:
            made.terminate()
    assert loaders.reuses_memory(poptorch.DataLoader(options, task(), batch_size=8))
    assert not loaders.reuses_memory([(1, 2)])
