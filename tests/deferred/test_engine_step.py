"""A hand-written Ignite step runs as one device step when `ipu_step` wraps it."""

from __future__ import annotations

import functools
from typing import Any, List

import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from ignite.metrics import RunningAverage
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import backend
from ignite_ipu.deferred import CaptureError, captured, ipu_step

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def data() -> Any:
    return DataLoader(TensorDataset(X, Y), batch_size=8)


def test_engine_over_a_function() -> None:
    """Model and optimizer are found among the function's variables; outputs and weights are the native ones."""
    runs = []
    for captures in (False, True):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        criterion = nn.CrossEntropyLoss()

        def train_step(
            engine: Engine, batch: Any, model: Any = model, optimizer: Any = optimizer, criterion: Any = criterion
        ) -> Any:
            model.train()
            optimizer.zero_grad()
            x, y = batch
            scores = model(x)
            loss = criterion(scores, y)
            loss.backward()
            optimizer.step()
            return {"loss": loss.item(), "scores": scores, "y": y}

        trainer = Engine(ipu_step(train_step) if captures else train_step)
        RunningAverage(output_transform=lambda output: output["loss"]).attach(trainer, "loss")
        losses: List[float] = []
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda engine, losses=losses: losses.append(engine.state.output["loss"])
        )
        trainer.run(data(), max_epochs=2)
        runs.append((model, losses, trainer.state.metrics["loss"], trainer.state.output["scores"].detach()))
    assert runs[1][1] == pytest.approx(runs[0][1], rel=1e-4)
    assert runs[1][2] == pytest.approx(runs[0][2], rel=1e-4) and type(runs[1][3]) is torch.Tensor
    torch.testing.assert_close(runs[1][3], runs[0][3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(runs[1][0].state_dict(), runs[0][0].state_dict(), rtol=1e-4, atol=1e-5)
    counters = backend.poptorch().counters(captured(runs[1][0]).session.training.executor)  # type: ignore[union-attr]
    assert (counters.compiles, counters.device_calls, counters.weight_uploads) == (1, 16, 1)


class Trainer:
    """Model and optimizer as attributes, the step as a method."""

    def __init__(self) -> None:
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, engine: Engine, batch: Any) -> Any:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        self.optimizer.step()
        return loss


def test_methods_and_partials_are_searched() -> None:
    """The step may be a method, or a partial application."""
    for make in (lambda trainer: trainer.step, lambda trainer: functools.partial(trainer.step)):
        trainer = Trainer()
        step = ipu_step(make(trainer))
        state = Engine(step).run(data())
        assert captured(trainer.model) is not None and type(state.output) is torch.Tensor


def test_what_is_not_found_can_be_named() -> None:
    """The error says how."""
    held = {"model": network()}

    def train_step(engine: Engine, batch: Any) -> Any:
        return held["model"](batch[0]).sum()

    with pytest.raises(CaptureError, match=r"ipu_step\(train_step, model=...\)"):
        ipu_step(train_step)
    optimizer = torch.optim.SGD(held["model"].parameters(), lr=0.1)
    assert ipu_step(train_step, model=held["model"], optimizer=optimizer)


def test_gradients_on_the_host_are_refused() -> None:
    """torch's own clipping would clip nothing; the device clips when it is told to."""
    trainer = Trainer()
    model, optimizer = trainer.model, trainer.optimizer

    def train_step(engine: Engine, batch: Any) -> Any:
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    with pytest.raises(CaptureError, match=r"ipu_step\(..., max_grad_norm=...\)"):
        ipu_step(train_step)(None, (X[:8], Y[:8]))


def test_clipping_on_the_device() -> None:
    """max_grad_norm is torch's clipping of the accumulated gradient."""
    models = []
    for captures in (False, True):
        trainer = Trainer()
        model, optimizer = trainer.model, trainer.optimizer
        if captures:
            step = ipu_step(trainer.step, max_grad_norm=0.2)
            for batch in data():
                step(None, batch)
        else:
            for x, y in data():
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
                optimizer.step()
        models.append(model.state_dict())
    torch.testing.assert_close(models[1], models[0], rtol=1e-4, atol=1e-5)


def test_a_native_run_has_the_step_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IGNITE_IPU_BACKEND", "native")

    def train_step(engine: Engine, batch: Any) -> Any:
        return batch

    assert ipu_step(train_step) is train_step
    with pytest.raises(ValueError, match="nothing clips"):
        ipu_step(train_step, max_grad_norm=1.0)
