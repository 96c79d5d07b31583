"""A call that raises an error of the user's code leaves the buffers that it has written until then, as in PyTorch."""

from __future__ import annotations

import warnings
from typing import Any, Callable, List, Tuple, Type

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError

Loop = Callable[[Any, torch.optim.Optimizer], List[Any]]
X = torch.randn(8, 6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 1, 0, 2])
every_update = pytest.mark.parametrize("update", ["auto", "device", "host"])
every_error = pytest.mark.parametrize("error", [ValueError, RuntimeError])


class Net(nn.Module):
    """Normalises, and then may refuse a batch."""

    total: torch.Tensor

    def __init__(self, error: Type[Exception], sums: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.error, self.sums, self.fails = error, sums, False
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> Any:
        if self.sums:
            self.total += x.sum()
        x = self.norm(x)
        if self.fails:
            raise self.error("a batch that the model refuses")
        return self.layer(x)

    def refuses(self, x: torch.Tensor) -> None:
        self.fails = True
        with pytest.raises(self.error, match="a batch that the model refuses"):
            self(x)
        self.fails = False


def seen(loop: Loop, error: Type[Exception], update: str, sums: bool = True) -> Tuple[List[Any], List[Any]]:
    """Return the numbers that a loop sees, and the state afterwards, in PyTorch and captured."""
    found = []
    for captured in (False, True):
        net = Net(error, sums)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        if captured:
            ipu_prepare(net, optimizer, config=IPUConfig(update=update))
        numbers = loop(net, optimizer)
        found.append([torch.as_tensor(each).tolist() for each in (*numbers, *net.state_dict().values())])
    return found[0], found[1]


def assert_same(loop: Loop, error: Type[Exception], update: str, sums: bool = True) -> None:
    eager, captured = seen(loop, error, update, sums)
    assert len(eager) == len(captured)
    for mine, theirs in zip(captured, eager):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))


def updated(net: Net, optimizer: torch.optim.Optimizer, *batches: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = torch.stack([F.cross_entropy(net(x), Y[: len(x)]) for x in batches]).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


@every_update
@every_error
@pytest.mark.parametrize("failing", [(0,), (1, 2), (3, 5, 6)])
def test_the_statistics_of_a_failed_call_are_kept(error: Any, update: str, failing: Tuple[int, ...]) -> None:
    def loop(net: Net, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for number, x in enumerate(X):
            x = x[:5] if number in (5, 6) else x
            if number in failing:
                net.refuses(x)
                found += [] if number % 2 else [net.norm.running_mean, net.norm.num_batches_tracked, net.total]
                found = [torch.as_tensor(each).clone() for each in found]
            found.append(updated(net, optimizer, x))
        return found

    assert_same(loop, error, update)


@every_update
@every_error
def test_a_failed_evaluation_keeps_what_it_has_written(error: Any, update: str) -> None:
    def loop(net: Net, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for number, x in enumerate(X):
            found.append(updated(net.train(), optimizer, x))
            net.eval()
            with torch.no_grad():
                if number in (0, 3):
                    net.refuses(x)
                found += [net(x).tolist(), net.total.tolist()]
        return found

    assert_same(loop, error, update)


@every_update
@every_error
def test_a_call_fails_between_two_of_one_update(error: Any, update: str) -> None:
    """Only statistics that no call reads can be written there; a device makes the calls of an update together."""

    def loop(net: Net, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for number, x in enumerate(X):
            optimizer.zero_grad()
            F.cross_entropy(net(x), Y).backward()  # type: ignore[no-untyped-call]
            if number in (0, 3, 4):
                net.refuses(x * 2)
            F.cross_entropy(net(x + 1), Y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found.append(next(net.norm.buffers()).tolist() if number == 5 else 0)
        return found

    assert_same(loop, error, update, sums=False)
    if update == "device":
        with pytest.raises(CaptureError, match=r"between them the call at .* has written buffers"):
            seen(loop, error, update, sums=True)


@every_update
def test_an_argument_is_a_value_that_is_not_known_yet(update: str) -> None:
    states = []
    for captured in (False, True):
        net, first = Net(ValueError, True), nn.Linear(4, 4)
        optimizer = torch.optim.SGD([*net.parameters(), *first.parameters()], lr=0.5)
        if captured:
            ipu_prepare(net, first, optimizer, config=IPUConfig(update=update))
        for number, x in enumerate(X):
            hidden = first(x)
            if number in (0, 3):
                net.refuses(hidden)
            optimizer.zero_grad()
            F.cross_entropy(net(hidden), Y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        states.append({name: each.clone() for name, each in net.state_dict().items()})
    torch.testing.assert_close(states[1], states[0])


@every_update
def test_a_call_without_a_loss_whose_statistics_are_read_is_between_two_of_one_update(update: str) -> None:
    def loop(net: Net, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for x in X:
            optimizer.zero_grad()
            first = F.cross_entropy(net(x), Y)
            net(x * 2)
            found.append(next(net.norm.buffers()).tolist())
            (first + F.cross_entropy(net(x + 1), Y)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return found

    assert_same(loop, ValueError, update, sums=False)


@every_update
@pytest.mark.parametrize("failing", [(0,), (4, 5)])
@pytest.mark.parametrize("reads", [False, True])
def test_an_update_that_fails_keeps_the_statistics_of_its_call(
    reads: bool, failing: Tuple[int, ...], update: str
) -> None:
    """PyTorch has written them in the forward; anomaly detection raises an error in the backward pass."""

    def loop(net: Net, optimizer: torch.optim.Optimizer) -> List[Any]:
        found: List[Any] = []
        for number, x in enumerate(X):
            optimizer.zero_grad()
            scores = net(x)
            # The derivative of a square root is infinite at zero.
            loss = F.cross_entropy(scores, Y) + (scores * 0 if number in failing else scores**2).sqrt().sum()
            with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
                warnings.simplefilter("ignore")
                try:
                    loss.backward()
                    optimizer.step()
                except RuntimeError as error:
                    found.append("nan values" in str(error))
            if reads:
                found += [net.total.tolist(), int(net.norm.num_batches_tracked)]  # type: ignore[arg-type]
        return found

    assert_same(loop, ValueError, update)
