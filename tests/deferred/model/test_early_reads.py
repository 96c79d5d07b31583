"""Between the read that runs an update and its `optimizer.step()`, the changes of the update stay hidden."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from ignite.engine import Engine
from torch import nn

from ignite_ipu import IPUAccelerator, ipu_step
from ignite_ipu.deferred import CaptureError
from tests.accelerate_state import forget

FUSED = {"update": "device"}
X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    forget()
    yield
    forget()


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 2))


def read_early(accelerator: Any, updates: int) -> Tuple[Any, Any]:
    """Return model and optimizer after some updates, one more backward, and a read of its loss."""
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))
    for number in range(updates + 1):
        loss = F.cross_entropy(model(X), Y)
        accelerator.backward(loss)
        assert loss.item() > 0
        if number < updates:
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer


def evaluate(model: nn.Module) -> Any:
    model.eval()
    try:
        with torch.no_grad():
            return model(X)
    finally:
        model.train()


def scale(model: Any) -> None:
    with torch.no_grad():
        model[0].weight.mul_(0.5)


SEEN: Dict[str, Callable[[Any, Any], Any]] = {
    "weights": lambda model, _: model[0].weight.norm(),
    "data": lambda model, _: model[0].weight.data,
    "buffers": lambda model, _: model[1].running_mean.sum(),
    "evaluation": lambda model, _: evaluate(model),
    "state_dict": lambda model, _: model.state_dict(),
    "copy": lambda model, _: copy.deepcopy(model),
    "file": lambda model, _: torch.save(model, io.BytesIO()),
    "print": lambda model, _: str(model[0].bias),
    "writing": lambda model, _: scale(model),
    "loading": lambda model, _: model.load_state_dict(network().state_dict()),
    "the optimizer's state_dict": lambda _, optimizer: optimizer.state_dict(),
    "the optimizer's state": lambda _, optimizer: list(optimizer.state.values()),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_an_early_update_has_changed_is_not_shown(name: str) -> None:
    """PyTorch would show it before the update; the error names both lines, and after step() all is as in PyTorch."""
    model, optimizer = read_early(IPUAccelerator(config=FUSED), 2)
    # PyTorch 2.0 puts errors of loading into one of its own.
    kind = RuntimeError if name == "loading" else CaptureError
    with pytest.raises(kind, match=r"made the update run before optimizer\.step\(\), and now weights") as error:
        SEEN[name](model, optimizer)
    assert str(error.value).count(f"{__file__}:") >= 2
    assert "Call optimizer.step() first, or read the value after optimizer.step()." in str(error.value)
    optimizer.step()
    found = copy.deepcopy(model.state_dict())
    forget()
    native, optimizer = read_early(Accelerator(cpu=True), 2)
    optimizer.step()
    torch.testing.assert_close(found, native.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SEEN)
def test_an_early_update_is_taken_back(name: str) -> None:
    """With updates that may go on on the host, everything is shown as PyTorch has it."""
    found = []
    for make in (lambda: Accelerator(cpu=True), IPUAccelerator):
        forget()
        model, optimizer = read_early(make(), 2)
        seen = SEEN[name](model, optimizer)
        if isinstance(seen, nn.Module):
            seen = dict(seen.state_dict())
        elif isinstance(seen, torch.Tensor):
            seen = seen.detach().clone()
        found.append([copy.deepcopy(seen) if isinstance(seen, (torch.Tensor, dict)) else None])
        optimizer.step()
        found[-1].append(copy.deepcopy(dict(model.state_dict())))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_the_first_read_shows_the_weights_of_before() -> None:
    """Gradients may still accumulate, so the host computes the value and no update runs."""
    model, optimizer = read_early(IPUAccelerator(config=FUSED), 0)
    torch.testing.assert_close(model[0].weight.norm(), network()[0].weight.norm())
    optimizer.step()
    assert not torch.equal(model[0].weight, network()[0].weight)


@pytest.mark.parametrize("save", [name for name in ("save_model", "save_state") if hasattr(Accelerator, name)])
def test_stopping_at_a_target_without_step(save: str, tmp_path: Path) -> None:
    """PyTorch saves the previous weights; the new ones can be saved after step()."""
    accelerator = IPUAccelerator(config=FUSED)
    model, optimizer = read_early(accelerator, 1)
    arguments = (model, str(tmp_path)) if save == "save_model" else (str(tmp_path),)
    with pytest.raises(CaptureError, match=r"Call optimizer\.step\(\) first"):
        getattr(accelerator, save)(*arguments)
    optimizer.step()
    getattr(accelerator, save)(*arguments)


@pytest.mark.parametrize("updates", [0, 2])
def test_what_says_nothing_about_values_is_answered(updates: int) -> None:
    """Shapes, types and the trained parameters do not change with an update."""
    model, optimizer = read_early(IPUAccelerator(config=FUSED), updates)
    weight = model[0].weight
    assert (weight.shape, weight.dtype, weight.numel(), weight.requires_grad) == ((16, 6), torch.float32, 96, True)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 178
    assert not hasattr(weight, "mark_of_a_library") and weight.grad is not None and len(weight) == 16
    optimizer.step()
    assert weight.norm() > 0


def test_layers_that_are_frozen_after_an_early_read() -> None:
    """The update was made with them, as in PyTorch; the next one is made without."""

    def run(accelerator: Any) -> Any:
        model, optimizer = read_early(accelerator, 2)
        model[0].requires_grad_(False)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            accelerator.backward(F.cross_entropy(model(X), Y))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return list(model.parameters())

    expected = run(Accelerator(cpu=True))
    forget()
    torch.testing.assert_close(run(IPUAccelerator(config=FUSED)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["free_memory", "end_training", "close"])
@pytest.mark.parametrize("updates", [1, 2])
def test_weights_are_not_lost(updates: int, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """Giving the IPUs back brings the weights, with a message that they include the update."""
    accelerator = IPUAccelerator(config=FUSED)
    model, _ = read_early(accelerator, updates)
    if how == "close":
        accelerator._loops()[0].close()
    else:
        getattr(accelerator, how)()
    assert "include an update whose optimizer.step() has not been called" in caplog.text
    found = [parameter.detach().clone() for parameter in model.parameters()]
    forget()
    native, optimizer = read_early(Accelerator(cpu=True), updates)
    optimizer.step()
    torch.testing.assert_close(found, [p.detach() for p in native.parameters()], rtol=1e-4, atol=1e-5)


def test_a_step_that_reads_its_loss_downloads_nothing() -> None:
    """The common `total += loss.item()` before step() costs no copy of weights, and they are read after the epoch."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []

    def step(engine: Engine, batch: Any) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()  # type: ignore[no-untyped-call]
        seen.append(loss.item())
        optimizer.step()
        return seen[-1]

    wrapped: Any = ipu_step(step)
    weights = wrapped.session.weights
    Engine(wrapped).run(range(4))
    looks = weights.detector.looks
    Engine(wrapped).run(range(4))
    assert weights.detector.looks == looks and weights.to_host() and sorted(seen, reverse=True) == seen
    assert model[0].weight.norm() > 0


def test_several_models_of_one_optimizer() -> None:
    """A value read before step() runs the update of both, and the step ends the refusal."""
    torch.manual_seed(0)
    accelerator = IPUAccelerator(config=FUSED)
    encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
    encoder, decoder, optimizer = accelerator.prepare(encoder, decoder, optimizer)
    for number in range(3):
        loss = F.cross_entropy(decoder(encoder(X)), Y)
        accelerator.backward(loss)
        loss.item()
        if number:
            with pytest.raises(CaptureError, match=r"Call optimizer\.step\(\) first"):
                encoder.weight.norm()
        optimizer.step()
        optimizer.zero_grad()
        assert encoder.weight.norm() > 0
