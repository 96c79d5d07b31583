"""Programs of a session evaluate a captured model: evaluators, `ipu_evaluate_batch` and steps, as native ones do."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
import torch.nn.functional as F
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.metrics import Accuracy, Loss
from torch import nn

from ignite_ipu import IPUAccelerator, create_ipu_evaluator, ipu_evaluate_batch, ipu_step

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
BATCHES = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 32, 8)]
# The last batch of an evaluation is an incomplete one.
HELD_BACK = [(X[:16], Y[:16]), (X[16:32], Y[16:32]), (X[32:], Y[32:])]
Step = Callable[[Engine, Any], Any]
Scores = List[Dict[str, float]]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))


def step_of(model: nn.Module, optimizer: Any, every: int = 1) -> Step:
    def train_step(engine: Engine, batch: Any) -> None:
        model.train()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        if engine.state.iteration % every == 0:
            optimizer.step()
            optimizer.zero_grad()

    return train_step


def metrics() -> Dict[str, Any]:
    return {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())}


def rounds(trainer: Engine, evaluator: Engine, first: str = "training") -> Scores:
    """Train and evaluate in turns, and return the results of the evaluations."""
    found: Scores = []
    if first == "evaluation":
        found.append(dict(evaluator.run(HELD_BACK).metrics))
    for _ in range(3):
        trainer.run(BATCHES)
        found.append(dict(evaluator.run(HELD_BACK).metrics))
    return found


def native(first: str = "training") -> Tuple[nn.Module, Scores]:
    """Return the model and the scores of Ignite's own engines."""
    model = network()
    trainer = Engine(step_of(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)))
    return model, rounds(trainer, create_supervised_evaluator(model, metrics=metrics()), first)


def same(found: Tuple[nn.Module, Scores], expected: Tuple[nn.Module, Scores]) -> None:
    assert [pytest.approx(scores, rel=1e-4) for scores in expected[1]] == found[1]
    assert len({scores["loss"] for scores in found[1]}) == len(found[1])
    weights, native_weights = (
        {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
        for model in (found[0], expected[0])
    )
    torch.testing.assert_close(weights, native_weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", ["training", "evaluation"])
@pytest.mark.parametrize("order", ["step first", "evaluator first"])
def test_an_evaluator_of_a_captured_model(order: str, first: str) -> None:
    """It sees the newest weights after each update, whichever was made or runs first."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if order == "step first":
        trainer = Engine(ipu_step(step_of(model, optimizer)))
        evaluator = create_ipu_evaluator(model, metrics=metrics())
    else:
        evaluator = create_ipu_evaluator(model, metrics=metrics())
        trainer = Engine(ipu_step(step_of(model, optimizer)))
    same((model, rounds(trainer, evaluator, first)), native(first))


def test_an_evaluator_of_a_prepared_model() -> None:
    """An accelerator's model is a captured one."""
    accelerator = IPUAccelerator()
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    evaluator = create_ipu_evaluator(model, metrics=metrics())
    same((model, rounds(Engine(step_of(model, optimizer)), evaluator)), native())


def test_batches_evaluated_between_updates() -> None:
    """Each sees the weights of the previous update, and the calls of the model itself in evaluation mode."""
    outputs = []
    for captures in (False, True):
        model, found = network(), []
        step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
        trainer = Engine(ipu_step(step) if captures else step)
        for batch in BATCHES:
            trainer.run([batch])
            model.eval()
            with torch.no_grad():
                found += [ipu_evaluate_batch(model, X) if captures else model(X), model(X[:8])]
        outputs.append(found)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


def test_an_evaluator_of_a_whole_with_a_captured_part() -> None:
    """A softmax around a captured model is evaluated with the part's newest weights."""
    model = network()
    trainer = Engine(ipu_step(step_of(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))))
    whole = nn.Sequential(model, nn.LogSoftmax(-1))
    evaluator = create_ipu_evaluator(whole, metrics={"accuracy": Accuracy(), "loss": Loss(nn.NLLLoss())})
    same((model, rounds(trainer, evaluator)), native())


class Towers:
    """Two models that one optimizer trains."""

    def __init__(self) -> None:
        self.body, self.head = network()[:3], nn.Linear(16, 2)
        parameters = [*self.body.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1)

    def step(self, engine: Engine, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.body.train(), self.head.train()
        F.cross_entropy(self.head(self.body(batch[0])), batch[1]).backward()
        self.optimizer.step()


@pytest.mark.parametrize("made", ["before", "between"])
def test_an_evaluator_of_one_of_several_models(made: str) -> None:
    """Of models that are trained together it evaluates the one that it was made for, whenever it was made."""
    outputs = []
    for captures in (False, True):
        towers = Towers()
        make = create_ipu_evaluator if captures else create_supervised_evaluator
        evaluators, found = [], []
        trainer = Engine(ipu_step(towers.step) if captures else towers.step)
        for number in range(3):
            if number == (made == "between"):
                models = (towers.body, towers.head)
                evaluators = [make(model, output_transform=lambda x, y, y_pred: y_pred) for model in models]
            for evaluator, x in zip(evaluators, (X[:8], torch.ones(8, 16))):
                found.append(evaluator.run([(x, Y[:8])]).output)
            trainer.run(BATCHES)
        outputs.append(found)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


def test_statistics_of_batches_that_wait_for_an_update_count() -> None:
    """While gradients accumulate, PyTorch has written the statistics of a batch already."""
    found = []
    for captures in (False, True):
        torch.manual_seed(0)
        model = network()
        step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.1), every=2)
        trainer = Engine(ipu_step(step) if captures else step)
        evaluator = (create_ipu_evaluator if captures else create_supervised_evaluator)(model, metrics=metrics())
        trainer.run(BATCHES[:1])
        evaluator.run(HELD_BACK)
        model.eval()
        with torch.no_grad():
            found.append([*evaluator.state.metrics.values(), *model(X).flatten().tolist()])
    assert found[1] == pytest.approx(found[0], rel=1e-4, abs=1e-5)


def test_an_evaluation_while_gradients_accumulate() -> None:
    """It leaves them as they are: the update is that of all batches."""
    states = []
    for captures in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(6, 2)
        step = step_of(model, torch.optim.SGD(model.parameters(), lr=0.1), every=2)
        trainer = Engine(ipu_step(step) if captures else step)
        evaluator = (create_ipu_evaluator if captures else create_supervised_evaluator)(model, metrics=metrics())

        def between(engine: Engine, model: Any = model, evaluator: Engine = evaluator) -> None:
            evaluator.run(HELD_BACK)
            assert model.weight.grad is not None or engine.state.iteration % 2 == 0

        trainer.add_event_handler(Events.ITERATION_COMPLETED, between)
        trainer.run(BATCHES)
        states.append((model.state_dict(), evaluator.state.metrics))
    torch.testing.assert_close(states[1][0], states[0][0], rtol=1e-4, atol=1e-5)
    assert states[1][1] == pytest.approx(states[0][1], rel=1e-4)
