"""Frozen models in a step are part of it, in whatever mode they are and wherever gradients flow."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events
from torch import nn

from ignite_ipu import IPUAccelerator, backend, create_ipu_evaluator, ipu_step
from ignite_ipu.deferred import captured
from ignite_ipu.errors import OptimizerError

BATCHES = [torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
Result = Tuple[List[float], Dict[str, Any], Dict[str, Any]]


class Models:
    """A model that is trained and a frozen one, which has statistics and draws nothing."""

    def __init__(self, training: bool = True) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.frozen = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()).train(training)
        self.frozen.requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, loss_of: Callable[[nn.Module, nn.Module, torch.Tensor], torch.Tensor]) -> Any:
        model, frozen, optimizer = self.model, self.frozen, self.optimizer

        def train_step(engine: Engine, x: torch.Tensor) -> float:
            optimizer.zero_grad()
            loss = loss_of(model, frozen, x)
            loss.backward()
            optimizer.step()
            return loss.item()

        return train_step

    def run(self, step: Any) -> Result:
        losses: List[float] = []
        trainer = Engine(step)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output))
        trainer.run(BATCHES, max_epochs=2)
        return losses, self.model.state_dict(), floats(self.frozen)


def floats(module: nn.Module) -> Dict[str, Any]:
    return {name: tensor for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def through(model: nn.Module, frozen: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return frozen(model(x)).square().mean()


def to_a_target(model: nn.Module, frozen: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(frozen(model(x)), frozen(x))


def backbone(model: nn.Module, frozen: nn.Module, x: torch.Tensor) -> torch.Tensor:
    features: torch.Tensor = model(frozen(x))
    return features.square().mean()


def without_gradients(model: nn.Module, frozen: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    with torch.no_grad():
        target = frozen(y)
    return F.mse_loss(y, target)


def with_and_without_gradients(model: nn.Module, frozen: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = model(x)
    with torch.no_grad():
        target = frozen(y)
    return F.mse_loss(frozen(y), target + x)


LOSSES = [through, to_a_target, backbone, without_gradients, with_and_without_gradients]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("loss_of", LOSSES)
def test_a_frozen_model_is_part_of_the_step(loss_of: Any, training: bool) -> None:
    """Losses, weights and the statistics of a frozen model in training mode are the native ones, by one program."""
    native, models = Models(training), Models(training)
    expected = native.run(native.step(loss_of))
    close(models.run(ipu_step(models.step(loss_of))), expected)
    capture = captured(models.model)
    assert capture is not None and capture.compilations == 1
    # A model in evaluation mode that is called with an ordinary tensor is a program of its own.
    assert (capture is captured(models.frozen)) == (loss_of is not backbone or training)
    assert all(parameter.grad is None for parameter in models.frozen.parameters())
    counters = backend.poptorch().counters(capture.session.training.executor)  # type: ignore[union-attr]
    assert counters.device_calls == 8


def test_a_step_with_a_prepared_frozen_model() -> None:
    """An accelerator's loop may have one, prepared or not."""
    native = Models(False)
    expected = native.run(native.step(through))
    for prepared in (True, False):
        models, accelerator = Models(False), IPUAccelerator()
        losses = []
        model, optimizer = accelerator.prepare(models.model, models.optimizer)
        frozen = accelerator.prepare(models.frozen) if prepared else models.frozen
        for x in BATCHES * 2:
            optimizer.zero_grad()
            loss = through(model, frozen, x)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
        close((losses, models.model.state_dict(), floats(models.frozen)), expected)


def late(models: Models, captures: bool) -> Result:
    """Train the model alone at first, and write into frozen weights after each update."""
    seen: List[torch.Tensor] = []

    def loss_of(model: nn.Module, frozen: nn.Module, x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        y: torch.Tensor = model(x)
        return (y if len(seen) < 3 else frozen(y)).square().mean()

    step = models.step(loss_of)
    trainer = Engine(ipu_step(step) if captures else step)

    @trainer.on(Events.ITERATION_COMPLETED)
    def follow() -> None:
        with torch.no_grad():
            models.frozen[0].weight.lerp_(models.model.weight, 0.25)  # type: ignore[operator, arg-type, union-attr]

    trainer.run(BATCHES, max_epochs=2)
    with torch.no_grad():
        last = models.frozen(BATCHES[0])
    return [trainer.state.output], models.model.state_dict(), {**floats(models.frozen), "last": last}


def test_a_frozen_model_that_comes_later_and_is_written() -> None:
    """Training of the model alone counts, and so do writes of the loop into frozen weights."""
    close(late(Models(False), True), late(Models(False), False))


def test_an_evaluator_of_a_frozen_model_and_of_the_trained_one() -> None:
    """Both evaluate, made before the first step, too."""
    outputs = []
    for captures in (False, True):
        models, found = Models(), []
        step = models.step(through)
        trainer = Engine(ipu_step(step) if captures else step)
        evaluators = [create_ipu_evaluator(model) for model in (models.model, models.frozen)] if captures else []
        for _ in range(2):
            models.model.train(), models.frozen.train()
            trainer.run(BATCHES)
            for evaluator in evaluators:
                found.append(evaluator.run([(BATCHES[0], BATCHES[0])]).output[0])
            if not captures:
                with torch.no_grad():
                    found += [module.eval()(BATCHES[0]) for module in (models.model, models.frozen)]
        outputs.append(found)
    close(outputs[1], outputs[0])


def test_a_model_that_is_unfrozen_later() -> None:
    """With an optimizer that holds its weights it is trained from then on, and without one it is refused by name."""
    models = Models(False)
    step = ipu_step(models.step(through))
    Engine(step).run(BATCHES)
    models.frozen.requires_grad_(True)
    models.frozen.train()
    with pytest.raises(OptimizerError, match=r"Sequential\.0\.weight"):
        Engine(step).run(BATCHES)
    models.frozen.eval()
    with pytest.raises(OptimizerError, match=r"Sequential\.0\.weight"):
        Engine(step).run(BATCHES)
    results = []
    for captures in (False, True):
        models = Models(False)
        step = models.step(through)
        trainer = Engine(ipu_step(step) if captures else step)
        trainer.run(BATCHES)
        models.frozen.requires_grad_(True)
        models.frozen.train()
        models.optimizer.add_param_group({"params": list(models.frozen.parameters())})
        trainer.run(BATCHES)
        results.append((models.model.state_dict(), floats(models.frozen)))
    close(results[1], results[0])


def test_a_frozen_model_that_an_optimizer_holds() -> None:
    """Its step does nothing while it is frozen, and the other optimizer's goes through it."""

    def train(prepare: Callable[[Any], Any]) -> Result:
        models = Models()
        other = torch.optim.SGD(models.frozen.parameters(), lr=0.1)
        step = models.step(through)

        def train_step(engine: Engine, x: torch.Tensor) -> float:
            loss: float = step(engine, x)
            other.step()
            return loss

        return models.run(prepare(train_step))

    close(train(ipu_step), train(lambda step: step))
