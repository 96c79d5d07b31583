"""A hand-written Ignite step runs as one device step when `ipu_step` wraps it."""

from __future__ import annotations

import copy
import functools
from typing import Any, Callable, List, Optional, Tuple

import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from ignite.engine.deterministic import DeterministicEngine
from ignite.metrics import Accuracy, Average, RunningAverage
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ignite_ipu import backend, ipu_prepare
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


def accumulating(
    captures: bool, iterations: int, attach: Callable[[Engine], Any], model: Optional[Any] = None
) -> Tuple[nn.Module, Engine]:
    """Return model and engine after a run in which every second iteration makes an update."""
    model = network() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(engine: Engine, batch: Any) -> Any:
        scores = model(batch[0])
        loss = F.cross_entropy(scores, batch[1]) / 2
        loss.backward()
        if engine.state.iteration % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return {"loss": loss.detach(), "scores": scores.detach(), "y": batch[1]}

    trainer = Engine(ipu_step(train_step) if captures else train_step)
    attach(trainer)
    trainer.run(list(data())[:iterations])
    return model, trainer


def every_second(trainer: Engine) -> None:
    trainer.state.seen = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED(every=2),
        lambda engine: engine.state.seen.append(engine.state.output["loss"].item()),
    )


def epoch_metrics(trainer: Engine) -> None:
    Average(output_transform=lambda output: output["loss"]).attach(trainer, "loss")
    Accuracy(output_transform=lambda output: (output["scores"], output["y"])).attach(trainer, "accuracy")


@pytest.mark.parametrize("attach", [lambda trainer: None, every_second])
@pytest.mark.parametrize("iterations", [8, 7, 2, 1])
def test_accumulation_over_iterations(iterations: int, attach: Callable[[Engine], Any]) -> None:
    """Nothing is updated if the step makes no update, and handlers read the results of the update."""
    (native, expected), (model, found) = (accumulating(captures, iterations, attach) for captures in (False, True))
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-4, atol=1e-5)
    assert getattr(found.state, "seen", []) == pytest.approx(getattr(expected.state, "seen", []), rel=1e-4)
    if iterations % 2 == 0:
        assert type(found.state.output["loss"]) is type(found.state.output["scores"]) is torch.Tensor
        torch.testing.assert_close(found.state.output, expected.state.output, rtol=1e-4, atol=1e-5)
    capture = captured(model)
    assert capture is not None and (capture.session.training is None) == (iterations == 1)


def every_iteration(trainer: Engine) -> None:
    trainer.state.seen = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: engine.state.seen.append(reads(engine)))


@pytest.mark.parametrize("attach", [every_iteration, epoch_metrics])
@pytest.mark.parametrize("iterations", [1, 7])
def test_values_of_an_update_that_has_not_run(iterations: int, attach: Callable[[Engine], Any]) -> None:
    """Handlers that read them get the native ones, which the host computes, and make no update."""
    (native, expected), (model, found) = (accumulating(captures, iterations, attach) for captures in (False, True))
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-4, atol=1e-5)
    assert getattr(found.state, "seen", []) == pytest.approx(getattr(expected.state, "seen", []), rel=1e-4)
    assert found.state.metrics == pytest.approx(expected.state.metrics, rel=1e-4)


def reads(engine: Engine) -> float:
    loss: torch.Tensor = engine.state.output["loss"]
    return loss.item()


def test_metrics_over_accumulated_iterations() -> None:
    """Metrics of an epoch add up values that are unknown yet."""
    (_, expected), (_, found) = (accumulating(captures, 8, epoch_metrics) for captures in (False, True))
    assert found.state.metrics == pytest.approx(expected.state.metrics, rel=1e-4)


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
    """The error explains the way out."""
    model = network()

    def train_step(engine: Any, batch: Any) -> Any:
        return engine.state.model(batch[0]).sum()

    with pytest.raises(CaptureError, match=r"ipu_step\(train_step, model=...\)"):
        ipu_step(train_step)(None, (X, Y))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert ipu_step(train_step, model=model, optimizer=optimizer)


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


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("sparse", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr], ids=["COO", "CSR"])
@pytest.mark.parametrize("place", ["the model's input", "a function's argument"])
def test_sparse_tensors_are_refused_at_their_line(place: str, sparse: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """An IPU takes dense tensors; the message names the sparse one and the method to call."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x.to_dense())

    inside = place == "the model's input"
    model = Dense() if inside else network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    matrix = sparse(torch.eye(8))

    def train_step(engine: Optional[Engine], batch: Any) -> Any:
        optimizer.zero_grad()
        scores = model(sparse(batch[0])) if inside else torch.sparse.mm(matrix, model(batch[0]))
        F.cross_entropy(scores, batch[1]).backward()
        optimizer.step()

    message = r"of shape \(8, .\) in the layout torch.sparse_.* at .*test_engine_step.py.*dense tensors alone.*to_dense"
    with pytest.raises(CaptureError, match=message):
        ipu_step(train_step)(None, (X[:8], Y[:8]))


def test_a_step_may_be_defined_before_what_it_uses() -> None:
    """Its models and optimizers are captured by the first call then."""

    def built(wrap: Callable[[Any], Any]) -> Tuple[nn.Module, Engine]:
        @wrap
        def train_step(engine: Engine, batch: Any) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
            return loss.item()

        trainer = Engine(train_step)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, trainer

    native, expected = built(lambda step: step)
    model, trainer = built(ipu_step)
    assert trainer.run(data(), max_epochs=2).output == pytest.approx(
        expected.run(data(), max_epochs=2).output, rel=1e-4
    )
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-4, atol=1e-5)
    assert captured(model) is not None


class LateTrainer(Trainer):
    """Registers its step first, keeps optimizers in a dictionary, and has a second model that comes last."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        self.engine = Engine(wrap(self.step))
        self.parts = {"body": nn.Linear(6, 8)}
        self.optimizers = {"body": torch.optim.SGD(self.parts["body"].parameters(), lr=0.1)}

    def add_head(self) -> None:
        """Add a model and its optimizer."""
        self.head = nn.Linear(8, 2)
        self.optimizers["head"] = torch.optim.SGD(self.head.parameters(), lr=0.2)

    def step(self, engine: Engine, batch: Any) -> Any:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()
        loss = F.cross_entropy(self.head(self.parts["body"](batch[0]).tanh()), batch[1])
        loss.backward()
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss.detach()


@pytest.mark.parametrize("wraps", ["first", "between"])
def test_objects_in_containers_are_found_and_those_that_come_later(wraps: str) -> None:
    """A step is searched again by its first call."""
    runs = []
    for wrap in (lambda step: step, ipu_step):
        torch.manual_seed(1)
        trainer = LateTrainer(wrap if wraps == "first" else lambda step: step)
        if wraps == "between":
            trainer.engine = Engine(wrap(trainer.step))
        trainer.add_head()
        output = trainer.engine.run(data(), max_epochs=2).output
        runs.append([output, *trainer.head.parameters(), *trainer.parts["body"].parameters()])
    assert captured(trainer.head) is not None and captured(trainer.parts["body"]) is not None
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-6)


def test_an_optimizer_in_the_state_of_the_engine_is_known_once_it_is_prepared() -> None:
    runs = []
    for wrap in (lambda step: step, ipu_step):
        torch.manual_seed(1)
        model = network()

        def step(engine: Engine, batch: Any, model: nn.Module = model) -> float:
            engine.state.optimizer.zero_grad()
            loss = F.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            engine.state.optimizer.step()
            return loss.item()

        engine = Engine(wrap(step))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine.state.optimizer = optimizer if wrap is not ipu_step else ipu_prepare(optimizer, model)
        runs.append([engine.run(data(), max_epochs=2).output, *model.parameters()])
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-4, atol=1e-6)


def test_a_step_that_never_gets_what_it_uses_is_refused_when_it_is_called() -> None:
    def outer() -> Any:
        step = ipu_step(lambda engine, batch: model(batch))
        if False:
            model = network()
        return step

    with pytest.raises(CaptureError, match="uses no model that could be found"):
        outer()(None, X)


def dropping_out(stop: Optional[int] = None, saved: Any = None) -> Tuple[nn.Module, Any]:
    """Return the model of a deterministic run, and its states at the iteration where it stops."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(engine: Engine, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = DeterministicEngine(ipu_step(train_step))
    states: List[Any] = []

    @trainer.on(Events.ITERATION_COMPLETED(once=stop or 1000))
    def save() -> None:
        states.extend(copy.deepcopy([model.state_dict(), optimizer.state_dict(), trainer.state_dict()]))
        trainer.terminate()

    for each, state in zip((model, optimizer, trainer), saved or ()):
        each.load_state_dict(state)
    torch.manual_seed(4)
    trainer.run(data(), max_epochs=2)  # Ignite shuffles otherwise after a resume within an epoch
    return model, states


@pytest.mark.parametrize("stop", [5, 8])
def test_a_resumed_deterministic_engine_drops_out_what_the_whole_run_does(stop: int) -> None:
    """Within an epoch and at its end."""
    whole, _ = dropping_out()
    _, saved = dropping_out(stop)
    resumed, _ = dropping_out(saved=saved)
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)
