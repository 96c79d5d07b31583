"""Integers that forward counts in have the values of eager PyTorch in captured loops, whenever the loop reads them."""

from __future__ import annotations

import copy
from typing import Any, List, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUAccelerator, IPUConfig, ipu_prepare
from ignite_ipu.errors import SessionError

GENERATOR = torch.Generator().manual_seed(1)
BATCHES = [(torch.randn(4, 6, generator=GENERATOR), torch.randint(0, 3, (4,), generator=GENERATOR)) for _ in range(6)]


class Counting(nn.Module):
    """A network that counts its calls and the use of its classes, and goes on in a queue."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("used", torch.zeros(3, dtype=torch.int32))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)
        self.steps += 1
        now = F.one_hot(h.argmax(1), 3).sum(0)
        self.used += now.int()
        self.seen |= now > 0
        self.pointer[0] = (self.pointer[0] + len(x)) % 7
        return h * (1 - 0.5**self.steps) + self.pointer


def values_of(update: Optional[str], accumulation: int) -> List[Any]:
    """Train, evaluate, write and look at everything; eagerly without `update`."""
    model: Any = Counting()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    backward: Any = torch.Tensor.backward
    if update == "accelerator":
        accelerator = IPUAccelerator()
        model, optimizer = accelerator.prepare(model, optimizer)
        backward = accelerator.backward
    elif update is not None:
        ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    seen: List[Any] = []
    for epoch in range(2):
        losses: List[Any] = []
        model.train()
        for number, (x, y) in enumerate(BATCHES):
            loss = F.cross_entropy(model(x), y) * (1 + model.steps if number == 4 else 1)
            if number % 3 == 1:
                seen.append(model.steps.item())
            backward(loss)
            if number % 3 == 2:
                seen.append(int(model.pointer))
            if (number + 1) % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            if number % 3 == 0 and (number + 1) % accumulation == 0:
                seen.append(losses[-1].item())
        seen.append(torch.tensor([loss.item() for loss in losses]))
        model.eval()
        with torch.no_grad():
            seen.append(model(BATCHES[epoch][0]))
        seen.append(copy.deepcopy(model).used)
        model.steps.fill_(7)
        with torch.no_grad():
            model.train()(BATCHES[0][0])
        seen += [value.clone() for value in model.state_dict().values()]
    return seen


@pytest.mark.parametrize("accumulation", [1, 3])
def test_integers_are_current_at_every_read(accumulation: int) -> None:
    """In fused updates and in those on the host, with evaluations, copies, writes and reads between the calls."""
    expected = values_of(None, accumulation)
    for update in ("device", "host", "accelerator"):
        torch.testing.assert_close(values_of(update, accumulation), expected, rtol=1e-4, atol=1e-5)


class Reading(nn.Module):
    """A network that counts if a call requires it, and computes with its counter in all calls."""

    def __init__(self, decides: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.decides = decides
        self.layer = nn.Linear(6, 3)
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: torch.Tensor, counts: bool) -> torch.Tensor:
        if counts:
            self.steps += 1
        elif self.decides:
            return self.layer(x) * (3 if self.steps > 2 else int(self.steps))
        return self.layer(x) * self.steps


@pytest.mark.parametrize(("evaluates", "decides"), [(True, False), (False, False), (True, True), (False, True)])
def test_calls_that_only_read_have_the_integers_of_those_that_write(evaluates: bool, decides: bool) -> None:
    """In evaluations and other training programs, whose code may decide by them, without a look at the model."""
    runs: List[Any] = []
    for update in (None, "device"):
        model = Reading(decides)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if update is not None:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        seen = []
        for number, (x, y) in enumerate(BATCHES):
            counts = number in (0, 1, 3)
            if evaluates and not counts:
                with torch.no_grad():
                    seen.append(model.eval()(x, False).sum())
                continue
            loss = F.cross_entropy(model.train()(x, counts), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.detach())
        runs.append(torch.stack(seen).clone())
    torch.testing.assert_close(runs[1], runs[0])


class Queue(nn.Module):
    """A network that compares with the rows of earlier calls, which it keeps in a queue, as for contrastive losses."""

    def __init__(self, reads_pointer: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.reads_pointer = nn.Linear(6, 3), reads_pointer
        self.register_buffer("queue", torch.randn(10, 3))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.layer(x)
        scores = h @ self.queue.clone().T
        rows, size = h.detach(), len(self.queue)
        if self.reads_pointer:
            start = int(self.pointer)
            self.queue[start : start + len(rows)] = rows[: size - start]
            self.queue[: max(0, start + len(rows) - size)] = rows[size - start :]
        else:
            self.queue[(self.pointer + torch.arange(len(rows))) % size] = rows
        self.pointer[0] = (self.pointer[0] + len(rows)) % size
        return scores


def trained(model: nn.Module, update: Any = None) -> Any:
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if update is not None:
        ipu_prepare(optimizer, model, config=IPUConfig(update=update))
    for x, y in BATCHES:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("update", ["device", "auto", "host"])
def test_the_place_of_a_pointer_is_a_tensor(update: Any) -> None:
    """A slice at `int(pointer)` needs its value; indices that are computed from it do not, also around the end."""
    expected = trained(Queue(reads_pointer=True))
    torch.testing.assert_close(trained(Queue(reads_pointer=False), update), expected, rtol=1e-4, atol=1e-5)
    if update == "device":
        with pytest.raises(SessionError, match=r"needs the value of a tensor.*pointer.*% len\(queue\)\] = rows"):
            trained(Queue(reads_pointer=True), update)
    else:
        torch.testing.assert_close(trained(Queue(reads_pointer=True), update), expected, rtol=1e-4, atol=1e-5)


class Uses(nn.Module):
    """A layer that counts in training how often each of its outputs is the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("used", torch.zeros(3, dtype=torch.long))
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.used += F.one_hot(h.argmax(1), 3).sum(0)
            self.seen |= self.used > 0
        return h * (1 + self.used / 100) + self.seen


class Staged(nn.Module):
    """A network with such a layer, whose counts it may read itself."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.uses, self.last, self.reads = nn.Linear(6, 3), Uses(), nn.Linear(3, 3), reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.last(self.uses(self.first(x)))
        return h * self.uses.used if self.reads else h


def staged(model: nn.Module, accumulation: int, **config: Any) -> List[Any]:
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if config:
        ipu_prepare(optimizer, model, config=IPUConfig(**config))
    seen: List[Any] = []
    for number, (x, y) in enumerate(BATCHES):
        (F.cross_entropy(model(x), y) / accumulation).backward()  # type: ignore[no-untyped-call]
        if (number + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                seen.append(model.eval()(x))
            model.train()
    return [*seen, *[value.clone() for value in model.state_dict().values()]]


@pytest.mark.parametrize("second", ["uses", "last"])
@pytest.mark.parametrize(
    ("update", "execution", "accumulation"),
    [
        *((update, "sharded", 1) for update in ("device", "auto", "host")),
        ("device", "pipelined", 3),
    ],
)
def test_a_layer_of_several_ipus_counts(update: Any, execution: str, accumulation: int, second: str) -> None:
    """Its stage reads and writes, so that the micro-batches of a pipeline count in their order."""
    expected = staged(Staged(), accumulation)
    placed = {"first": 0, second: 1}
    found = staged(Staged(), accumulation, update=update, pipeline=placed, execution=execution)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_integers_of_another_layer_are_refused_over_several_ipus() -> None:
    """The code that reads them may be on another IPU."""
    with pytest.raises(SessionError, match=r"Staged\.forward uses a written buffer of integers.*over several IPUs"):
        staged(Staged(reads=True), 1, pipeline={"first": 0, "last": 1}, execution="sharded")
