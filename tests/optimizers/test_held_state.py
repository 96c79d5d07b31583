"""State of an optimizer that code holds over updates changes with them, as in eager PyTorch."""

from __future__ import annotations

import copy
import io
import logging
import tracemalloc
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import backend, ipu_prepare

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
OPTIMIZERS: Dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
}


def moment(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> torch.Tensor:
    return next(value for name, value in optimizer.state[weight].items() if name != "step")


HELD: Dict[str, Callable[[torch.optim.Optimizer, torch.Tensor], Any]] = {
    "dictionary": lambda optimizer, weight: optimizer.state_dict(),
    "states_in_it": lambda optimizer, weight: optimizer.state_dict()["state"],
    "entries_in_it": lambda optimizer, weight: optimizer.state_dict()["state"][0],
    "state": lambda optimizer, weight: optimizer.state,
    "entries": lambda optimizer, weight: optimizer.state[weight],
    "moment": moment,
    "row": lambda optimizer, weight: moment(optimizer, weight)[0],
    "array": lambda optimizer, weight: moment(optimizer, weight).numpy(),
    "row_of_an_array": lambda optimizer, weight: moment(optimizer, weight).numpy()[0],
    "copy": lambda optimizer, weight: copy.deepcopy(optimizer.state_dict()),
}


def numbers(held: Any) -> List[float]:
    if isinstance(held, (torch.Tensor, np.ndarray)):
        return [float(held.sum())]
    if isinstance(held, (float, int)):
        return [float(held)]
    return [number for name, value in held.items() if name != "param_groups" for number in numbers(value)]


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.mse_loss(model(X), X[:, :2]).backward()
    optimizer.step()


def prepared(make: Callable[..., Any], captures: bool = True) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = make(model.parameters())
    if captures:
        ipu_prepare(optimizer, model)
    return model, optimizer


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_held_state_is_live(kind: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Only a copy keeps its values, and costs nothing; moments that are written count for the next update."""

    def seen(captures: bool) -> List[float]:
        model, optimizer = prepared(OPTIMIZERS[kind], captures)
        found: List[float] = []
        update(model, optimizer)
        held = HELD[name](optimizer, model.weight)
        for number in range(4):
            update(model, optimizer)
            found += numbers(held)
            if number == 1 and name in ("moment", "row"):
                held.mul_(0.5)
        return found + numbers(optimizer.state_dict()) + numbers(model.state_dict())

    expected = seen(False)
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        assert seen(True) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert caplog.text.count("The loop keeps a state_dict() of") == (name != "copy")


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("captured_later", [False, True])
def test_two_optimizers_with_the_same_moments(first: int, captured_later: bool) -> None:
    """`load_state_dict` takes the other's tensors from PyTorch 2.1 on: the updates of both change them."""

    def seen(captures: bool) -> List[float]:
        pairs = [prepared(OPTIMIZERS["Adam"], captures and not (captured_later and number)) for number in range(2)]
        update(*pairs[0])
        pairs[1 - first][1].load_state_dict(pairs[first][1].state_dict())
        if captures and captured_later:
            ipu_prepare(pairs[1][1], pairs[1][0])
        found: List[float] = []
        for _ in range(3):
            for model, optimizer in pairs:
                update(model, optimizer)
                found += numbers(model.state_dict())
        return found

    assert seen(True) == pytest.approx(seen(False), rel=1e-4, abs=1e-6)


def test_tensors_of_the_state_stay_the_same_objects() -> None:
    """As in eager PyTorch, which updates them in place."""
    model, optimizer = prepared(OPTIMIZERS["Adam"])
    update(model, optimizer)
    before = [id(value) for value in optimizer.state[model.weight].values()]
    update(model, optimizer)
    assert [id(value) for value in optimizer.state[model.weight].values()] == before


def test_state_that_is_saved_or_dropped_costs_no_copies() -> None:
    """One download for each dictionary, and none for the updates after it."""
    model, optimizer = prepared(OPTIMIZERS["Adam"])
    update(model, optimizer)
    torch.save(optimizer.state_dict(), io.BytesIO())
    before = backend.poptorch().counters()
    for _ in range(3):
        update(model, optimizer)
    assert (backend.poptorch().counters() - before).optimizer_state_downloads == 0


def test_writes_into_held_state_are_found_without_a_copy_of_it() -> None:
    """Through an array, which PyTorch does not count, and in a large state."""

    def seen(captures: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 20_000)
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        if captures:
            ipu_prepare(optimizer, model)

        def step() -> None:
            optimizer.zero_grad()
            model(X).square().mean().backward()
            optimizer.step()

        step()
        tracemalloc.start()  # of Python's memory and numpy's
        held = optimizer.state_dict()["state"][0]["momentum_buffer"].numpy()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < held.nbytes / 2
        held[:] = np.arange(4)
        step()
        return model.weight.detach().clone()

    torch.testing.assert_close(seen(True), seen(False), rtol=1e-4, atol=1e-6)


def test_state_with_gaps_in_memory() -> None:
    """A loop may put any tensor into the state of its optimizer, such as every second row of another one."""

    def seen(captures: bool) -> List[float]:
        model, optimizer = prepared(OPTIMIZERS["momentum"], captures)
        update(model, optimizer)
        optimizer.state[model.bias]["momentum_buffer"] = torch.arange(4.0)[::2]
        update(model, optimizer)
        return numbers(model.state_dict())

    assert seen(True) == pytest.approx(seen(False), rel=1e-4, abs=1e-6)
