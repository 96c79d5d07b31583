"""Buffers that two models have, or in the same memory, have PyTorch's values, whichever of the models writes them."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import pytest
import torch
from torch import nn

from ignite_ipu import IPUConfig, create_ipu_evaluator, create_ipu_trainer, ipu_prepare
from ignite_ipu.errors import CaptureError

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


class Normalised(nn.Module):
    """Has statistics of products with a table."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.register_buffer("table", table)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.layer(x) * self.table.sum())


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("steps", [True, False])
def test_a_call_in_no_update_reads_a_table_that_one_of_an_update_writes(
    steps: bool, is_first: bool, update: Any
) -> None:
    """It may still go backward if it comes first; nothing has its results if it comes second."""

    def run(captured: bool) -> List[float]:
        torch.manual_seed(0)
        table, results = torch.ones(4), []
        reader, writer = Normalised(table), Scaled(table, True)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (reader, writer)]
        if captured:
            ipu_prepare(*optimizers, reader, writer, config=IPUConfig(update=update))
        for x in X:
            kept = reader(x) if is_first else None
            loss = writer(x).square().mean()
            if not is_first:
                reader(x)
            loss.backward()
            if steps:
                optimizers[1].step()
            results.append(float(reader.norm.running_mean.sum()))  # type: ignore[union-attr]
            optimizers[1].zero_grad()
            del kept
            reader(x).square().mean().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
        return [*results, *[float(each.sum()) for each in reader.state_dict().values()]]

    assert run(captured=True) == pytest.approx(run(captured=False), rel=1e-4)


def trunk_and_heads() -> List[nn.Module]:
    """Two models with one trunk, whose statistics calls of both write."""
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    return [nn.Sequential(trunk, nn.Linear(4, 3)), nn.Sequential(trunk, nn.Linear(4, 1))]


Step = Callable[[List[nn.Module], List[Any], Callable[[Any], None]], None]
"""Makes a step of models with their optimizers, and notes values and models."""


def noted(make: Callable[[], List[nn.Module]], joint: bool, step: Step, update: Optional[str]) -> List[torch.Tensor]:
    """Return what three steps note, by one optimizer or by one for each model; None as `update` is plain PyTorch."""
    models = make()
    parameters = {id(each): index for index, model in reversed([*enumerate(models)]) for each in model.parameters()}
    every = {id(each): each for model in models for each in model.parameters()}
    groups = [[every[key] for key, index in parameters.items() if joint or index == of] for of in range(len(models))]
    optimizers = [torch.optim.SGD(group, lr=0.1) for group in groups[: 1 if joint else None]]
    if update is not None:
        for index, optimizer in enumerate(optimizers):
            prepared = models if joint else [models[index]]
            ipu_prepare(optimizer, *prepared, config=IPUConfig(update=update))  # type: ignore[call-overload]
    found: List[torch.Tensor] = []

    def note(what: Any) -> None:
        state = what.state_dict().values() if isinstance(what, nn.Module) else [what]
        found.extend(each.detach().clone().float() for each in state)

    torch.manual_seed(1)
    for _ in range(3):
        step(models, optimizers, note)
        for optimizer in optimizers:
            optimizer.zero_grad()
    for model in models:
        note(model)
    return [torch.as_tensor(each.tolist()) for each in found]


def batch() -> torch.Tensor:
    return torch.randn(6, 3)


def both(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
    loss = models[0](batch()).square().mean() + models[1](batch()).square().mean()
    loss.backward()
    optimizers[0].step()
    note(loss)
    note(models[1])


def one_after_the_other(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
    loss = models[1](models[0](batch())).square().mean()
    loss.backward()
    optimizers[0].step()
    note(models[1])


def left_calls(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
    x = batch()
    models[1](batch())
    loss = models[0](x).square().mean()
    models[1](x)
    loss.backward()
    optimizers[0].step()
    note(models[1])


def read_between(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
    first, second = models[0](batch()).square().mean(), models[1](batch()).square().mean()
    first.backward()
    note(models[1])
    second.backward()
    optimizers[0].step()
    note(models[0])


def evaluated_between(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
    loss = models[0](batch()).square().mean()
    models[1].eval()
    with torch.no_grad():
        note(models[1](torch.ones(2, 3)))
    models[1].train()
    loss.backward()
    optimizers[0].step()
    note(models[0])


def in_turns(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
    for model, optimizer in zip(models, optimizers):
        for each in optimizers:
            each.zero_grad()
        loss = model(batch()).square().mean()
        loss.backward()
        optimizer.step()
        note(loss)
        note(models[0])


def read_before_updates(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
    first, second = models[0](batch()), models[1](batch())
    note(models[0])
    second.square().mean().backward()
    optimizers[1].step()
    optimizers[1].zero_grad()
    note(models[1])
    first.square().mean().backward()
    optimizers[0].step()
    note(models[0])


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("step", [both, one_after_the_other, left_calls, read_between, evaluated_between])
def test_statistics_of_a_shared_trunk(step: Step, update: str) -> None:
    expected = noted(trunk_and_heads, True, step, None)
    torch.testing.assert_close(noted(trunk_and_heads, True, step, update), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_statistics_of_a_shared_trunk_with_two_optimizers(update: str) -> None:
    expected = noted(trunk_and_heads, False, in_turns, None)
    torch.testing.assert_close(noted(trunk_and_heads, False, in_turns, update), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_statistics_that_are_read_before_the_updates_of_two_optimizers(update: str) -> None:
    expected = noted(trunk_and_heads, False, read_before_updates, None)
    found = noted(trunk_and_heads, False, read_before_updates, update)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", ["auto", "host"])
def test_a_trunk_that_a_model_gets_while_it_is_trained(update: str) -> None:
    def step(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
        models[1][0] = models[0][0]  # type: ignore[operator,index]
        in_turns(models, optimizers, note)
        first, second = models[0](batch()).mean(), models[1](batch()).mean()
        note(models[1])
        (first + second).backward()

    def apart() -> List[nn.Module]:
        return [trunk_and_heads()[0], trunk_and_heads()[1]]

    expected = noted(apart, False, step, None)
    torch.testing.assert_close(noted(apart, False, step, update), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_a_call_reads_a_buffer_that_a_later_call_of_another_model_writes_first(update: str) -> None:
    """Nothing has the buffer as the call has read it: other numbers are refused."""

    def step(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
        reading, writing = models[1](batch()), models[0](batch())
        writing.mean().backward()
        optimizers[0].step()
        reading.mean().backward()
        optimizers[1].step()

    with pytest.raises(CaptureError, match="reads buffers that a later call of another model has written since"):
        noted(lambda: pair(MEMORY[0], True), False, step, update)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_calls_of_one_update_read_a_buffer_before_and_after_a_call_writes_it(update: str) -> None:
    def step(models: List[nn.Module], optimizers: List[Any], note: Callable[[Any], None]) -> None:
        losses = [models[index](batch()).square().mean() for index in (1, 0, 1)]
        sum(losses).backward()  # type: ignore[union-attr]
        optimizers[0].step()
        for loss in losses:
            note(loss)

    expected = noted(lambda: pair(MEMORY[0], True), True, step, None)
    found = noted(lambda: pair(MEMORY[0], True), True, step, update)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
