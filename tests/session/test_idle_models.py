"""IPUs that idle models give back: when they are asked to, and when another model finds none left."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu import create_ipu_trainer, emulator, ipu_prepare, ipu_release

X, Y = torch.randn(8, 4), torch.randint(2, (8,))


def made(seed: int) -> Tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(X), Y).backward()
    optimizer.step()


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    model.eval()
    loss = nn.functional.cross_entropy(model(X), Y).item()
    model.train()
    return loss


@pytest.fixture
def two_ipus(monkeypatch: Any, tmp_path: Path) -> None:
    """Have a machine of two IPUs, of which executors of other tests that wait to be collected hold none."""
    monkeypatch.setenv("IGNITE_IPU_EMULATED_IPUS", "2")
    monkeypatch.setenv("IGNITE_IPU_RUNTIME_DIR", str(tmp_path))


def test_five_models_train_one_after_another_on_two_ipus(two_ipus, caplog):
    """As a notebook that still names the older ones, which go on later with their weights and optimizer state."""
    kept, expected = [], []
    for seed in range(5):
        model, optimizer = made(seed)
        native = copy.deepcopy(model)
        native_optimizer = torch.optim.Adam(native.parameters(), lr=0.1)
        ipu_prepare(optimizer, model)
        for _ in range(2):
            update(model, optimizer)
            update(native, native_optimizer)
        assert evaluate(model) == pytest.approx(evaluate(native), abs=1e-6)
        kept.append((model, optimizer))
        expected.append((native, native_optimizer))
    assert "gives its IPUs to Sequential, since this machine has no more" in caplog.text
    for (model, optimizer), (native, native_optimizer) in zip(kept, expected):
        update(model, optimizer)
        update(native, native_optimizer)
        assert evaluate(model) == pytest.approx(evaluate(native), abs=1e-6)


def test_released_models_go_on_without_another_compilation():
    model, optimizer = made(0)
    native = copy.deepcopy(model)
    native_optimizer = torch.optim.Adam(native.parameters(), lr=0.1)
    ipu_prepare(optimizer, model)
    update(model, optimizer)
    update(native, native_optimizer)
    before = emulator.counters()
    ipu_release(model)
    assert torch.allclose(model[0].weight, native[0].weight, atol=1e-6)
    update(model, optimizer)
    update(native, native_optimizer)
    assert torch.allclose(model[0].weight, native[0].weight, atol=1e-6)
    assert (emulator.counters() - before).compiles == 0


def test_a_trainers_model_is_released_and_an_ordinary_one_left_alone():
    model, optimizer = made(0)
    trainer = create_ipu_trainer(model, optimizer, nn.CrossEntropyLoss())
    trainer.run([(X, Y)], max_epochs=1)
    ipu_release(model, nn.Linear(1, 1))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer.run([(X, Y)], max_epochs=2)
    assert not all(map(torch.equal, before, model.parameters()))
