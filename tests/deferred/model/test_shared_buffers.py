"""Buffers of two models in the same memory have PyTorch's values, whichever of the models writes them."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import pytest
import torch
from torch import nn

from ignite_ipu import IPUConfig, create_ipu_evaluator, create_ipu_trainer, ipu_prepare

X = [torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
MEMORY: List[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda table: table,
    lambda table: table[:1],
    lambda table: table.data,
]


class Scaled(nn.Module):
    """Multiplies by the sum of a table, into which it may write first."""

    def __init__(self, table: torch.Tensor, writes: bool) -> None:
        super().__init__()
        self.layer, self.writes = nn.Linear(3, 3), writes
        self.register_buffer("table", table)

    def forward(self, x: torch.Tensor) -> Any:
        if self.writes:
            self.table.add_(x.detach().abs().mean())
        return self.layer(x) * self.table.sum()


def pair(memory: Callable[[torch.Tensor], torch.Tensor], first_writes: bool) -> List[nn.Module]:
    torch.manual_seed(0)
    first = Scaled(torch.ones(4), first_writes)
    return [first, Scaled(memory(first.table), not first_writes)]


def play(models: List[nn.Module], trained: List[bool], update: Optional[Any]) -> List[float]:
    """Return the results of calls in turns, and the tables in the end; models that are not `trained` are evaluated."""
    optimizers: List[Any] = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    if update is not None:
        for model, optimizer in zip(models, optimizers):
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    results = []
    for x in X:
        for model, optimizer, trains in zip(models, optimizers, trained):
            if trains:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                results.append(loss.item())
            else:
                model.eval()
                with torch.no_grad():
                    results.append(model(x).sum().item())
    return [*results, *[float(model.state_dict()["table"].sum()) for model in models]]


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("first_writes", [True, False])
@pytest.mark.parametrize(
    ("trained", "update"),
    [
        *(([True, True], update) for update in ("device", "auto", "host")),
        *(([True, False], update) for update in ("device", "host")),
        ([False, True], "device"),
        ([False, False], "device"),
    ],
)
def test_calls_in_turns(trained: List[bool], first_writes: bool, memory: Any, update: Any) -> None:
    expected = play(pair(memory, first_writes), trained, None)
    assert play(pair(memory, first_writes), trained, update) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("update", ["device", "host"])
def test_several_calls_of_one_between_those_of_the_other(update: Any) -> None:
    """What a loop writes on the host between them counts, too."""

    def run(captured: bool) -> List[float]:
        models = pair(MEMORY[1], True)
        optimizers: List[Any] = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
        if captured:
            for model, optimizer in zip(models, optimizers):
                ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        results = []
        for number, turn in enumerate([0, 0, 1, 1, 0, 1, 0, 0, 1]):
            model, optimizer = models[turn], optimizers[turn]
            optimizer.zero_grad()
            loss = model(X[number % 3]).square().mean()
            loss.backward()
            optimizer.step()
            results.append(loss.item())
            if number == 5:
                with torch.no_grad():
                    models[0].table.mul_(0.5)  # type: ignore[operator,union-attr]
        return [*results, float(models[0].table.sum()), float(models[1].table.sum())]  # type: ignore[operator]

    assert run(captured=True) == pytest.approx(run(captured=False), rel=1e-4)


def test_a_trainer_and_an_evaluator_of_another_model() -> None:
    def outputs(native: bool) -> List[float]:
        student, teacher = pair(MEMORY[1], True)
        optimizer = torch.optim.SGD(student.parameters(), lr=1e-3)
        results: List[float] = []
        batches = [(x, torch.zeros(4, 3)) for x in X]
        if not native:
            trainer, evaluator = create_ipu_trainer(student, optimizer, nn.MSELoss()), create_ipu_evaluator(teacher)
            for batch in batches:
                trainer.run([batch])
                evaluator.run([batch])
                assert isinstance(evaluator.state.output, tuple)
                results.append(float(evaluator.state.output[0].sum()))
            return results
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(student(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            with torch.no_grad():
                results.append(float(teacher(x).sum()))
        return results

    assert outputs(native=False) == pytest.approx(outputs(native=True), rel=1e-4)
