"""BERT, GPT-2, ViT and T5 from configurations train in an Ignite trainer, a loop and a pipeline, and generate."""

from __future__ import annotations

import functools
from typing import Any, Dict, Tuple

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from ignite_ipu import create_ipu_trainer
from ignite_ipu.deferred import captured
from ignite_ipu.deferred.accelerator import IPUAccelerator
from tests.accelerate_state import forget

models = pytest.importorskip("tests.transformers_models")
pytestmark = pytest.mark.skipif(not hasattr(nn.functional, "scaled_dot_product_attention"), reason="PyTorch is too old")
KINDS = [models.bert, models.gpt2, models.vit, models.t5]


def made(make: Any) -> Tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = make()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@functools.lru_cache(maxsize=None)
def natively(make: Any, size: int = 4) -> nn.Module:
    """Return the model that PyTorch trains on one batch after the other."""
    model, optimizer = made(make)
    model.train()
    for batch in DataLoader(models.Examples(make), batch_size=size):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model


def whole(batch: Dict[str, torch.Tensor], device: Any = None, non_blocking: bool = False) -> Any:
    return batch, batch["labels"]


def trainer_of(make: Any, **settings: Any) -> Tuple[nn.Module, Any]:
    model, optimizer = made(make)
    trainer = create_ipu_trainer(
        model,
        optimizer,
        lambda output, labels: output.loss,
        prepare_batch=whole,
        model_fn=lambda model, batch: model(**batch),
        **settings,
    )
    return model, trainer


def trained_in_a_loop(make: Any, size: int, **settings: Any) -> Tuple[IPUAccelerator, nn.Module]:
    """Return an accelerator, and the model that it has trained on one batch after the other."""
    forget()
    accelerator = IPUAccelerator(config=settings)
    loader = DataLoader(models.Examples(make), batch_size=size)
    model, optimizer, loader = accelerator.prepare(*made(make), loader)
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        accelerator.backward(model(**batch).loss)
        optimizer.step()
    return accelerator, model


def assert_same(model: nn.Module, native: nn.Module) -> None:
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_trainer(make: Any) -> None:
    model, trainer = trainer_of(make)
    trainer.run(DataLoader(models.Examples(make), batch_size=4))
    assert_same(model, natively(make))
    trainer.ipu.close()


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_pipeline(make: Any) -> None:
    """In micro-batches of one sample."""
    model, trainer = trainer_of(make, pipeline=models.stages(make()), gradient_accumulation_steps=8)
    trainer.run(DataLoader(models.Examples(make), batch_size=1))
    assert "Placement(pipelined: " in repr(trainer.ipu)
    assert_same(model, natively(make, size=8))
    trainer.ipu.close()


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_pipeline_in_a_loop(make: Any) -> None:
    """Of batches that are cut into micro-batches of one sample."""
    accelerator, model = trained_in_a_loop(make, 8, pipeline=models.stages(make()), split_batch=8)
    executor = captured(model).session.training.executor
    assert executor._executable.compiled.placement.pipelined and executor.options.Training.gradient_accumulation == 8
    assert_same(accelerator.unwrap_model(model), natively(make, size=8))


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_loop_that_generates(make: Any) -> None:
    """Language models write on, the others classify: as the model trained on the host does."""
    accelerator, model = trained_in_a_loop(make, 4)
    native = natively(make)
    assert_same(accelerator.unwrap_model(model), native)
    columns = {name: column[:2] for name, column in models.Examples(make).columns.items() if name != "labels"}
    model.eval(), native.eval()
    with torch.no_grad():
        if make in (models.gpt2, models.t5):
            how = {"max_new_tokens": 4, "do_sample": False, "use_cache": False}
            assert torch.equal(model.generate(**columns, **how), native.generate(**columns, **how))
        else:
            torch.testing.assert_close(model(**columns).logits, native(**columns).logits, rtol=1e-4, atol=1e-5)
