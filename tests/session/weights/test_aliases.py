"""Tensors with the memory of weights that code keeps over updates change with the weights, as in eager PyTorch."""

from __future__ import annotations

import copy
import logging
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.program.tensors.raw import bring_newest, plain
from ignite_ipu.session.session import IPUSession

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
KEPT: Dict[str, Callable[[nn.Module], Any]] = {
    "data": lambda model: model.weight.data,
    "detached": lambda model: model.weight.detach(),
    "entries": lambda model: {name: tensor for name, tensor in model.state_dict().items()}["weight"],
    "one_entry": lambda model: model.state_dict()["weight"],
    "a_value": lambda model: next(iter(model.state_dict().values())),
    "popped": lambda model: model.state_dict().pop("weight"),
    "copied_state": lambda model: model.state_dict().copy()["weight"],
    "array": lambda model: model.weight.detach().numpy(),
    "array_of_data": lambda model: model.weight.data.cpu().numpy(),
    "row_of_an_array": lambda model: model.weight.numpy(force=True)[0],
    "tensor_of_an_array": lambda model: torch.from_numpy(model.weight.detach().numpy()),
    "buffer_of_an_array": lambda model: np.asarray(memoryview(model.weight.detach().numpy())),
    "transposed": lambda model: model.weight.detach().t()[0],
    "row_detached": lambda model: model.weight.detach()[0],
    "other_parameter": lambda model: nn.Parameter(model.weight.data, requires_grad=False),
    "by_dlpack": lambda model: torch.from_dlpack(model.weight.detach()),
    "own_storage": lambda model: torch.empty(0).set_(model.weight.data.untyped_storage(), 1, (3,)),
    "copy": lambda model: model.weight.detach().clone(),
}


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    F.mse_loss(model(X), X[:, :2]).backward()
    optimizer.step()


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_is_live(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Taken before the first update, or between two; only a copy keeps its values, and costs nothing."""

    def sums(captures: bool) -> List[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model)
        found, kept = [], []
        for _ in range(3):
            kept.append(KEPT[name](model))
            update(model, optimizer)
            found += [float(each.sum()) for each in kept]
        return found

    expected = sums(False)
    with caplog.at_level(logging.WARNING, "ignite_ipu"):
        assert sums(True) == pytest.approx(expected, rel=1e-5)
    assert caplog.text.count("over updates. In eager PyTorch they change") == (name != "copy")


@pytest.mark.parametrize("write", [lambda array: array.__imul__(0.5), lambda array: array.fill(0.25)])
@pytest.mark.parametrize("update_on", ["device", "host"])
def test_arrays_from_before_the_capture_are_live_and_written_into(update_on: str, write: Callable[[Any], Any]) -> None:
    """The next update begins with the written values, and the array shows its result."""

    def values(captures: bool) -> List[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        array, found = model.weight.detach().numpy(), []
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update_on))
        for number in range(5):
            update(model, optimizer)
            found.append(float(array.sum()))
            if number in (1, 2):
                write(array)
        return found

    assert values(True) == pytest.approx(values(False), rel=1e-5)


@pytest.mark.parametrize("update_on", ["device", "host"])
def test_a_write_through_an_array_that_is_dropped_at_once_counts(update_on: str) -> None:
    """PyTorch counts no such write."""

    def values(captures: bool) -> List[float]:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update_on))
        found = []
        for _ in range(4):
            update(model, optimizer)
            model.weight.detach().numpy()[0] *= 0.5
            with torch.no_grad():
                found.append(float(model.eval()(X).sum()))
            model.train().weight.detach().cpu().numpy()[1] = 0.25
        return found

    assert values(True) == pytest.approx(values(False), rel=1e-4)


def test_an_array_costs_no_copies_once_it_is_dropped() -> None:
    """As long as it is kept, each update copies the weights to the host."""
    model = nn.Linear(4, 2)
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    update(model, optimizer)
    rows = [model.weight.detach().numpy()[0]]
    update(model, optimizer)
    assert not IPUSession.of(model).weights.host.is_stale
    rows.clear()
    update(model, optimizer)
    assert IPUSession.of(model).weights.host.is_stale


def test_a_state_that_nobody_takes_from_costs_no_copies() -> None:
    """It shows the newest weights when it is asked; loading or copying it keeps no tensor of it."""
    model = nn.Linear(4, 2)
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    state = model.state_dict()
    update(model, optimizer)
    model.load_state_dict(copy.deepcopy(state))
    update(model, optimizer)
    assert IPUSession.of(model).weights.host.is_stale


def test_a_read_that_keeps_nothing_hands_out_no_memory() -> None:
    """It brings the newest weights to the host, and nothing is looked for that shares them."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    native = copy.deepcopy(model)
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for _ in range(2):
        update(model, optimizer)
    weights = IPUSession.of(model).weights
    assert weights.detector.accesses is not None
    bring_newest(model.weight)
    assert not weights.detector.accesses.aliases.handed_out
    of_native = torch.optim.SGD(native.parameters(), lr=0.1)
    for _ in range(2):
        update(native, of_native)
    torch.testing.assert_close(plain(model.weight), plain(native.weight))


def test_entries_of_a_state_are_the_same_while_they_are_kept() -> None:
    """As in eager PyTorch; one that is set by hand is the tensor that was set."""
    model = nn.Linear(4, 2)
    ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    state = model.state_dict()
    kept = state["weight"]
    assert kept is state["weight"] is dict(state)["weight"] is dict(state.items())["weight"]
    assert [tuple(each.shape) for each in reversed(state.values())] == [(2,), (2, 4)]
    assert [key for key, _ in reversed(state.items())] == ["bias", "weight"]
    assert state.get("other", 1) == state.pop("other", 1) == 1
    state["weight"] = torch.zeros(2, 4)
    assert torch.equal(state["weight"], torch.zeros(2, 4)) and not torch.equal(kept, state["weight"])


def test_a_view_of_a_state_costs_no_copies_once_it_is_dropped() -> None:
    """Looking at an entry, printing the state and comparing shapes keep nothing."""
    model = nn.Linear(4, 2)
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    state, copied = model.state_dict(), model.state_dict().copy()
    assert "weight" in repr(state) and [each.numel() for each in copied.values()] == [8, 2]
    assert torch.equal(state["bias"], model.bias.detach())
    update(model, optimizer)
    assert IPUSession.of(model).weights.host.is_stale


@pytest.mark.skipif(not hasattr(torch, "_foreach_copy_"), reason="with PyTorch 2.0 the loop makes the search")
def test_a_loop_that_keeps_nothing_needs_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor copies of weights: the first calls on the host hand out no memory, and no views in their graph are left."""

    def search(*given: Any) -> Any:
        pytest.fail("memory of weights counts as kept by the loop")

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ipu_prepare(optimizer, model)
    monkeypatch.setattr("ignite_ipu.session.weights.aliases.tensors_at", search)
    monkeypatch.setattr("ignite_ipu.session.weights.access.AccessTracker.keep", search)
    for _ in range(2):
        update(model, optimizer)
