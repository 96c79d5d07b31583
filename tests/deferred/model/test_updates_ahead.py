"""Updates that a read has run before `backward()` or `step()`, after which the loop goes another way than before."""

from __future__ import annotations

import copy
from typing import Any, Callable, List

import pytest
import torch
from torch import Tensor, nn

from ignite_ipu import IPUConfig, ipu_clip_grad_norm_, ipu_prepare
from ignite_ipu.deferred import CaptureError, EarlyReadError

X = torch.randn(24, 8, 3, generator=torch.Generator().manual_seed(2))


def scaled(loss: Tensor, out: Tensor, model: nn.Module) -> None:
    (loss * 8).backward()  # type: ignore[no-untyped-call]


def scaled_in_place(loss: Tensor, out: Tensor, model: nn.Module) -> None:
    loss /= 2
    loss.backward()  # type: ignore[no-untyped-call]


def with_another_term(loss: Tensor, out: Tensor, model: nn.Module) -> None:
    (loss + out.abs().mean()).backward()  # type: ignore[no-untyped-call]


def replaced(loss: Tensor, out: Tensor, model: nn.Module) -> None:
    out.abs().mean().backward()  # type: ignore[no-untyped-call]


def with_a_penalty(loss: Tensor, out: Tensor, model: Any) -> None:
    (loss + model[0].bias.square().sum()).backward()


def once_more(loss: Tensor, out: Tensor, model: nn.Module) -> None:
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    (loss * 2).backward()  # type: ignore[no-untyped-call]


def with_a_later_call(loss: Tensor, out: Tensor, model: nn.Module) -> None:
    (model(X[0]).mean() + loss).backward()


BACKWARDS = [scaled, scaled_in_place, with_another_term, replaced, with_a_penalty, once_more, with_a_later_call]


def run(goes: Callable[..., None], update: str = "", before: int = 2) -> List[Tensor]:
    """Train with the loss alone for some updates, and then in another way; returns the values read, and the weights."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    if update:
        model = ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    seen = []
    for number, x in enumerate(X[: before + 4]):
        optimizer.zero_grad()
        out = model(x)
        loss = out.square().mean()
        seen.append(torch.tensor(loss.item()))
        if before <= number < before + 2:
            goes(loss, out, model)
        else:
            loss.backward()
        optimizer.step()
    return [*seen, *[parameter.detach().clone() for parameter in model.parameters()]]


@pytest.mark.parametrize("goes", BACKWARDS)
@pytest.mark.parametrize("update", ["auto", "host"])
def test_another_loss_than_the_read_one_goes_backward(goes: Callable[..., None], update: str) -> None:
    """The update that the read has run is taken back, and gradients flow as in PyTorch."""
    torch.testing.assert_close(run(goes, update), run(goes), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("goes", BACKWARDS)
@pytest.mark.parametrize(("update", "before"), [("device", 2), ("auto", 12)])
def test_another_loss_is_refused_where_the_update_cannot_be_taken_back(
    goes: Callable[..., None], update: str, before: int
) -> None:
    with pytest.raises(CaptureError, match=r"The value read at .* made the update run before"):
        run(goes, update, before)


def test_a_sum_of_read_losses_needs_no_graph_of_them() -> None:
    """PyTorch keeps the graph of the sum; nothing flows through it."""

    def total(loss: Tensor, out: Tensor, model: nn.Module) -> None:
        added = loss + 1
        loss.backward()  # type: ignore[no-untyped-call]
        assert added.item() == pytest.approx(loss.item() + 1)

    torch.testing.assert_close(run(total, "device", 12), run(total, before=12), rtol=1e-4, atol=1e-5)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def spectral() -> nn.Module:
    """A model of which each call writes buffers, from the weights."""
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2))


READS = ["loss", "norm", "loss before clearing", "loss before calls"]


def evaluated(model: nn.Module, x: Tensor) -> List[Tensor]:
    model.eval()
    with torch.no_grad():
        out = model(x).mean()
    model.train()
    return [out.clone()]


def without_gradients(model: nn.Module, x: Tensor) -> List[Tensor]:
    with torch.no_grad():
        return [model(x).mean()]


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def train_with_calls(
    model: Any, update: str, between: Callable[..., List[Tensor]], reads: str, before: int
) -> List[Tensor]:
    """Train with calls between the read that runs an update and its step; returns the read values and the state."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    if update:
        model = ipu_prepare(model, optimizer, config=IPUConfig(update=update))
    seen: List[Any] = []
    for number, x in enumerate(X[: before + 4]):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if reads == "norm":
            loss.backward()
            seen.append(float(ipu_clip_grad_norm_(model.parameters(), 1e9)))
        else:
            seen.append(loss.item())
            if reads == "loss before clearing":
                optimizer.zero_grad()
            if reads != "loss before calls":
                loss.backward()
        now = between(model, X[number + 4]) if before <= number < before + 2 else []
        if reads == "loss before calls":
            loss.backward()
        optimizer.step()
        seen += [value.item() for value in now]
    return [torch.tensor(seen), *[value.detach().clone() for value in model.state_dict().values()]]


def discarded(model: nn.Module, x: Tensor) -> List[Tensor]:
    model(x)
    return []


def read_after_the_step(model: nn.Module, x: Tensor) -> List[Tensor]:
    return [model(x).square().mean()]


def read_before_the_step(model: nn.Module, x: Tensor) -> List[Tensor]:
    return [torch.tensor(model(x).square().mean().item())]


@pytest.mark.parametrize(
    "between", [discarded, read_after_the_step, read_before_the_step, evaluated, without_gradients]
)
@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("make", [plain, spectral, normalised])
def test_calls_before_the_step_compute_with_the_weights_before_it(
    make: Callable[[], nn.Module], reads: str, between: Callable[..., List[Tensor]]
) -> None:
    torch.manual_seed(3)
    native = make()
    model = copy.deepcopy(native)
    found = train_with_calls(model, "auto", between, reads, 2)
    expected = train_with_calls(native, "", between, reads, 2)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("update", "before", "reads"), [*[("device", 2, reads) for reads in READS], ("auto", 12, "loss")]
)
@pytest.mark.parametrize(
    ("make", "between"),
    [
        (spectral, discarded),
        (spectral, read_after_the_step),
        (plain, read_after_the_step),
        (plain, read_before_the_step),
    ],
)
def test_calls_before_the_step_are_refused_where_the_weights_before_it_are_gone(
    make: Callable[[], nn.Module], between: Callable[..., List[Tensor]], update: str, before: int, reads: str
) -> None:
    with pytest.raises((CaptureError, EarlyReadError)):
        train_with_calls(make(), update, between, reads, before)


def write_row(weight: torch.Tensor) -> None:
    weight[0].mul_(0.5)


def write_rows(weight: torch.Tensor) -> None:
    for row in weight:
        row.mul_(0.5)


def write_flat(weight: torch.Tensor) -> None:
    weight.view(-1)[:5] = 0.3


def write_detached(weight: torch.Tensor) -> None:
    weight.detach().mul_(0.5)


@pytest.mark.parametrize("write", [write_row, write_rows, write_flat, write_detached])
def test_a_view_of_a_weight_is_written_after_a_read_that_ran_the_update(write: Callable[[torch.Tensor], None]) -> None:
    """The update is taken back for the access to the weight, and what follows it is followed as other writes are."""
    found = []
    for prepared in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        if prepared:
            ipu_prepare(model, optimizer, config=IPUConfig(update="auto"))
        for number in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.randn(6, 4)), torch.arange(6) % 3)
            if number == 2:
                loss.item()
                with torch.no_grad():
                    write(model[0].weight)
            loss.backward()
            optimizer.step()
        found.append((loss.item(), copy.deepcopy(model.state_dict())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
