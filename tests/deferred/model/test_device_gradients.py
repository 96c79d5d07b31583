"""Gradients that a loop reads are those of a native run at any time, and cost nothing if they are not read."""

from __future__ import annotations

import logging
import operator
from typing import Any, Callable, List, Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

from ignite_ipu import IPUConfig, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.deferred import captured
from ignite_ipu.errors import CaptureError

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()
Seen = List[Any]
_gradient = operator.attrgetter("grad")  # which does not name the attribute in code, as an exotic logger might


class Net(nn.Module):
    """A shared layer, a frozen one, and one that forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.tied, self.unused = self.first, nn.Linear(3, 3)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.tied(self.frozen(torch.tanh(self.first(x)))))


def loss(model: nn.Module, update: int, rows: int = 8) -> torch.Tensor:
    part = slice(rows * update, rows * (update + 1))
    return F.cross_entropy(model(X[part]), Y[part])


def gradients_now(model: nn.Module) -> Seen:
    """Return copies of all gradients, None where there is none."""
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def before_step(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    seen = []
    for update in range(3):
        optimizer.zero_grad()
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        seen += gradients_now(model) if update else [p.grad.norm().item() for p in model.last.parameters()]  # type: ignore
        optimizer.step()
    return seen


def after_step(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    """Every other update, and after clearing in both ways."""
    seen = []
    for update in range(4):
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if update % 2:
            seen += gradients_now(model)
        optimizer.zero_grad(set_to_none=update < 2)
        if update in (1, 3):
            seen += gradients_now(model)
    return seen


def beside_weights(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    """Operations on a gradient and its weight, in both orders, have the newest values of both."""
    seen = []
    for update in range(3):
        optimizer.zero_grad()
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            trained = [(p.grad, p) for p in model.parameters() if p.grad is not None]
            seen += [part for gradient, p in trained for part in (gradient * p, p * gradient)]
            for gradient, p in trained:
                p.add_(gradient, alpha=-0.01)
    return seen


def accumulated(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    seen = []
    for update in range(8):
        (loss(model, update, 4) / 4).backward()  # type: ignore[no-untyped-call]
        if update % 4 == 3:
            optimizer.step()
            seen += gradients_now(model)
            optimizer.zero_grad()
    return seen


def so_far(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    """The accumulated gradients after each backward call, from the first update on."""
    seen = []
    for update in range(8):
        (loss(model, update, 4) / 4).backward()  # type: ignore[no-untyped-call]
        seen += gradients_now(model)
        if update % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return seen


def by_hand_and_clipped(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    """The norm before clipping is computed in Python, also in the first update, before the loop clips."""
    seen = []
    for update in range(3):
        optimizer.zero_grad()
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        seen.append(sum(p.grad.norm().item() ** 2 for p in model.parameters() if p.grad is not None))
        clip(model.parameters(), 0.05)
        optimizer.step()
        seen += [p.detach().clone() for p in model.parameters()]
    return seen


def clipped(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    """The norm is the one before clipping, gradients are the clipped ones, and an infinite norm clips nothing."""
    seen: Seen = []
    for update in range(3):
        optimizer.zero_grad()
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        seen.append(clip(model.last.parameters(), float("inf"), norm_type=1.0))
        norm = clip(model.parameters(), 0.05)
        if update == 1:
            seen += [norm > 0.05, float(norm), *gradients_now(model)]
        optimizer.step()
        seen += [norm, *gradients_now(model)]
    return seen


def clipped_again(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    """Each norm is of the gradients after the previous calls, and the least of the norms counts."""
    seen: Seen = []
    for update in range(4):
        optimizer.zero_grad()
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        seen += [clip(model.parameters(), norm) for norm in (0.08, 0.05, 0.07, float("inf"))]
        optimizer.step()
        seen += [p.detach().clone() for p in model.parameters()]
    return seen


def clipped_and_dropped(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    """Gradients that are dropped take their clipping with them."""
    seen: Seen = []
    for update in range(2):
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        clip(model.parameters(), 0.01)
        optimizer.zero_grad()
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        seen.append(clip(model.parameters(), float("inf")))
        optimizer.step()
        optimizer.zero_grad()
        seen += [p.detach().clone() for p in model.parameters()]
    return seen


def kept(model: nn.Module, optimizer: Any, clip: Any) -> Seen:
    """Gradients of earlier updates that a loop holds stay theirs."""
    held: Seen = []
    for update in range(3):
        loss(model, update).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        held.append(model.first.weight.grad)
        held.append(model.last.weight.grad[0])  # type: ignore[index]
        optimizer.zero_grad()
    return [each.abs().sum() for each in held]


def trained(use: Callable[..., Seen], prepared: bool, dtype: torch.dtype, config: Optional[IPUConfig]) -> Seen:
    torch.manual_seed(0)
    model = Net().to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if not prepared:
        return use(model, optimizer, nn.utils.clip_grad_norm_)
    found = use(model, ipu_prepare(optimizer, model, config=config), ipu_clip_grad_norm_)
    capture = captured(model)
    assert capture is not None
    capture.close()
    return found


class Decaying(nn.Module):
    """Writes a buffer that the next call reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.mul_(0.5).add_(0.1)
        return self.linear(x) * self.scale.clone()


@pytest.mark.parametrize("dropped", [False, True])
def test_those_of_the_host_are_by_the_buffers_that_the_calls_before_have_written(dropped: bool) -> None:
    """Also where a call before is part of no update, since its gradients were cleared."""
    found: List[Seen] = []
    for prepared in (False, True):
        torch.manual_seed(0)
        model = Decaying()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ipu_prepare(optimizer, model) if prepared else optimizer
        found.append([])
        for update in range(4):
            loss(model, update).backward()  # type: ignore[no-untyped-call]
            if dropped and update % 2 == 0:
                optimizer.zero_grad()
                continue
            found[-1] += gradients_now(model)
            if update % 2:
                optimizer.step()
                optimizer.zero_grad()
        found[-1].append(model.scale.clone())
    for mine, theirs in zip(*found):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("use", "replicas"),
    [
        (before_step, 1),
        (after_step, 1),
        (beside_weights, 1),
        (accumulated, 1),
        (accumulated, 2),
        (so_far, 1),
        (so_far, 2),
        (by_hand_and_clipped, 1),
        (clipped, 1),
        (clipped_again, 1),
        (clipped_and_dropped, 1),
        (kept, 1),
    ],
)
def test_they_are_native_whenever_the_loop_looks(use: Callable[..., Seen], replicas: int) -> None:
    """Unused and frozen parameters have none; a shared one has the sum."""
    expected = trained(use, False, torch.float32, None)
    found = trained(use, True, torch.float32, IPUConfig(replication_factor=replicas))
    assert [each is None for each in found] == [each is None for each in expected]
    for mine, theirs in zip(found, expected):
        if theirs is not None:
            torch.testing.assert_close(torch.as_tensor(mine), torch.as_tensor(theirs), rtol=1e-5, atol=1e-7)


def test_a_program_that_nobody_reads_gradients_of_brings_none_back() -> None:
    """The first look at them compiles it anew, with a line about the cost; an update that has been made is gone."""
    said: List[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ignite_ipu").addHandler(handler)
    torch.manual_seed(0)
    model = Net()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    capture = captured(model)
    assert capture is not None

    def update(look: bool) -> None:
        optimizer.zero_grad()
        loss(model, 0).backward()  # type: ignore[no-untyped-call]
        if look:
            _gradient(model.last.weight).norm()
        optimizer.step()

    update(False)
    assert not dict(capture.session.training.options("anchored_tensors"))  # type: ignore[union-attr]
    with pytest.raises(CaptureError, match=r"at .*test_device_gradients.py:\d+ of an update that did not bring its gr"):
        _gradient(model.last.weight).norm()
    update(True)
    update(False)
    assert capture.compilations == 2
    (line,) = [text for text in said if text.startswith("Gradients are used at")]
    assert "each update returns" in line
    logging.getLogger("ignite_ipu").removeHandler(handler)
    assert _gradient(model.last.weight).norm() > 0
    capture.close()


@pytest.mark.parametrize("updates", [1, 4])
def test_gradients_that_an_update_has_returned_can_be_written_where_updates_may_be_the_hosts(updates: int) -> None:
    """They come back for their norm, which is read after the step; a second step then uses the written ones."""
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    weights = []
    for captures in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(model, optimizer, config=IPUConfig(update="auto"))
        for _ in range(updates):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            norm = ipu_clip_grad_norm_(model.parameters(), float("inf"))
            optimizer.step()
        assert norm > 0
        model.weight.grad.mul_(0.5)  # type: ignore[union-attr]
        optimizer.step()
        weights.append(model.weight.detach().clone())
    torch.testing.assert_close(weights[1], weights[0])


def swapped(model: nn.Module) -> None:
    model[1], model[2] = model[2], model[1]  # type: ignore[index, operator]


def pruned(model: nn.Module) -> None:
    prune.remove(model[1], "weight")  # type: ignore[index]


def without_symmetry(model: nn.Module) -> None:
    parametrize.remove_parametrizations(model[2], "weight")  # type: ignore[index]


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).t()

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu()


@pytest.mark.parametrize("rename", [swapped, pruned, without_symmetry])
@pytest.mark.parametrize("update", ["device", "auto"])
def test_gradients_belong_to_parameters_that_get_other_names(update: Any, rename: Callable[[nn.Module], None]) -> None:
    """After the last update, and in layers that trade places."""

    def seen(captures: bool) -> Seen:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)], nn.Linear(6, 2))
        if rename is pruned:
            prune.l1_unstructured(model[1], "weight", 0.5)
        elif rename is without_symmetry:
            parametrize.register_parametrization(model[2], "weight", Symmetric())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        for number in range(2):
            optimizer.zero_grad()
            loss(model, number).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rename(model)
        return gradients_now(model)

    torch.testing.assert_close(seen(True), seen(False), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("update", ["device", "auto"])
def test_a_gradient_that_is_assigned_to_its_own_parameter_stays_on_the_device(
    update: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch changes nothing, and the device goes on to make the updates."""

    def weights(captures: bool) -> List[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(6, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        if captures:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        for number in range(3):
            optimizer.zero_grad()
            loss(model, number).backward()  # type: ignore[no-untyped-call]
            for parameter in model.parameters():
                parameter.grad = parameter.grad
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.parameters()]

    torch.testing.assert_close(weights(True), weights(False), rtol=1e-4, atol=1e-6)
    assert not [message for message in caplog.messages if "updated on the host" in message]
