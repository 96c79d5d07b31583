"""One core, three front ends: the factory, the accelerator and a PopTorch loop by hand end with identical weights."""

from __future__ import annotations

from typing import Any, Dict

import torch
import torch.nn.functional as F
from ignite.engine import Engine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import IPUAccelerator, backend, create_ipu_trainer, ipu_step

STEPS, SEED = 2, 11
X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def loader() -> Any:
    return DataLoader(TensorDataset(X, Y), batch_size=8)


def factory() -> nn.Module:
    model = network()
    trainer = create_ipu_trainer(
        model, adam(model), nn.CrossEntropyLoss(), gradient_accumulation_steps=STEPS, seed=SEED
    )
    trainer.run(loader(), max_epochs=2)
    return model


def accelerated() -> nn.Module:
    accelerator = IPUAccelerator(gradient_accumulation_steps=STEPS, seed=SEED)
    model = network()
    model, optimizer, data = accelerator.prepare(model, adam(model), loader())
    for _ in range(2):
        for x, y in data:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
    return model


def hand_written_step() -> nn.Module:
    model = network()
    optimizer = adam(model)

    def train_step(engine: Engine, batch: Any) -> None:
        (F.cross_entropy(model(batch[0]), batch[1]) / STEPS).backward()
        if engine.state.iteration % STEPS == 0:
            optimizer.step()
            optimizer.zero_grad()

    Engine(ipu_step(train_step, seed=SEED)).run(loader(), max_epochs=2)
    return model


def hand_written_poptorch() -> nn.Module:
    poptorch = backend.poptorch()

    class WithLoss(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return poptorch.identity_loss(F.cross_entropy(self.model(x), y), reduction="none")

    model = network()
    options = poptorch.Options().randomSeed(SEED)
    options.Training.gradientAccumulation(STEPS)
    data = poptorch.DataLoader(options, TensorDataset(X, Y), batch_size=8)
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.01)
    executor = poptorch.trainingModel(WithLoss(model), options=options, optimizer=optimizer)
    for _ in range(2):
        for x, y in data:
            executor(x, y)
    executor.destroy()
    return model


def test_identical_weights() -> None:
    """The same model, data and seed, dropout included."""
    expected: Dict[str, torch.Tensor] = hand_written_poptorch().state_dict()
    for train in (factory, accelerated, hand_written_step):
        found = train().state_dict()
        for name, value in expected.items():
            assert torch.equal(found[name], value), (train.__name__, name)
