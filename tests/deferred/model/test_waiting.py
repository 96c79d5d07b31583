"""Buffers of two models that are views of one memory have PyTorch's values while calls of one wait for their update."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import pytest
import torch
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.errors import CaptureError
from tests.deferred.model.test_shared_buffers import MEMORY, Scaled, X

Note = Callable[[torch.Tensor], None]
Step = Callable[[List[nn.Module], List[Any], Note], None]
VIEWS = [MEMORY[1], MEMORY[2]]
"""A view, with whose memory PyTorch counts writes together, and one with a count of its own."""


def update(loss: torch.Tensor, optimizer: Any) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def other_trains(models: List[nn.Module], optimizers: List[Any], note: Note) -> None:
    first, second = models[0](X[0]), models[1](X[1])
    update(second.square().mean(), optimizers[1])
    update(first.square().mean(), optimizers[0])
    note(second)
    note(first)


def other_trains_between(models: List[nn.Module], optimizers: List[Any], note: Note) -> None:
    first, second, third = models[0](X[0]), models[1](X[1]), models[0](X[2])
    update(second.square().mean(), optimizers[1])
    update((first + third).square().mean(), optimizers[0])
    for each in (first, second, third):
        note(each)


def unused(models: List[nn.Module], optimizers: List[Any], note: Note) -> None:
    models[0](X[0])
    loss = models[1](X[1]).square().mean()
    update(loss, optimizers[1])
    note(loss)


def buffer_read(models: List[nn.Module], optimizers: List[Any], note: Note) -> None:
    first = models[0](X[0])
    note(models[1].table)  # type: ignore[arg-type]
    update(first.square().mean(), optimizers[0])
    note(first)


def state_read(models: List[nn.Module], optimizers: List[Any], note: Note) -> None:
    loss = models[0](X[0]).square().mean()
    loss.backward()
    note(models[1].state_dict()["table"])
    optimizers[0].step()
    optimizers[0].zero_grad()
    note(loss)


def other_evaluated(models: List[nn.Module], optimizers: List[Any], note: Note) -> None:
    first = models[0](X[0])
    models[1].eval()
    with torch.no_grad():
        note(models[1](X[1]))
    models[1].train()
    update(first.square().mean(), optimizers[0])
    note(first)


def read_and_then_written(models: List[nn.Module], optimizers: List[Any], note: Note) -> None:
    second, first = models[1](X[1]), models[0](X[0])
    update(first.square().mean(), optimizers[0])
    update(second.square().mean(), optimizers[1])
    note(second)
    note(first)


def written_by_the_loop(models: List[nn.Module], optimizers: List[Any], note: Note) -> None:
    first = models[0](X[0])
    with torch.no_grad():
        models[1].table.mul_(0.5)  # type: ignore[operator,union-attr]
    update(first.square().mean(), optimizers[0])
    note(first)


def played(step: Step, memory: Any, other_writes: bool, update: Optional[Any]) -> torch.Tensor:
    """Return the sums that three steps note, and of the states in the end; None as `update` is plain PyTorch."""
    torch.manual_seed(0)
    first = Scaled(torch.ones(4), True)
    models: List[nn.Module] = [first, Scaled(memory(first.table), other_writes)]
    optimizers: List[Any] = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    if update is not None:
        for model, optimizer in zip(models, optimizers):
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    found: List[float] = []
    for _ in range(3):
        step(models, optimizers, lambda tensor: found.append(float(tensor.detach().clone().sum())))
    found += [float(each.sum()) for model in models for each in model.state_dict().values()]
    return torch.tensor(found)


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("memory", VIEWS)
@pytest.mark.parametrize("step", [other_trains, other_trains_between, unused, buffer_read, state_read, other_evaluated])
def test_a_call_waits_that_writes_the_memory(step: Step, memory: Any, update: Any) -> None:
    """The host replays it before the other model uses the memory."""
    torch.testing.assert_close(played(step, memory, False, update), played(step, memory, False, None))


@pytest.mark.parametrize("update", ["device", "auto", "host"])
@pytest.mark.parametrize("memory", VIEWS)
@pytest.mark.parametrize("step", [unused, buffer_read])
def test_calls_of_both_write_the_memory(step: Step, memory: Any, update: Any) -> None:
    torch.testing.assert_close(played(step, memory, True, update), played(step, memory, True, None))


@pytest.mark.parametrize("memory", VIEWS)
@pytest.mark.parametrize(
    ("step", "other_writes"), [(read_and_then_written, False), (written_by_the_loop, False), (other_trains, True)]
)
def test_the_memory_is_written_while_a_call_waits(step: Step, other_writes: bool, memory: Any) -> None:
    """An update on the host has the earlier values; the device has none but the newest."""
    for update in ("auto", "host"):
        torch.testing.assert_close(played(step, memory, other_writes, update), played(step, memory, other_writes, None))
    with pytest.raises(CaptureError, match="weights or buffers of Scaled were written after that"):
        played(step, memory, other_writes, "device")
