"""Weights that a loop edits between updates reach the device, and noticing it costs nothing for each weight."""

from __future__ import annotations

import copy
import sys
from typing import Any, Callable, List
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu import IPUConfig, backend, ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer, captured

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
UPDATES = 3


def network(depth: int = 1) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), *[nn.Linear(8, 8) for _ in range(depth)], nn.Linear(8, 2))


def prepared(depth: int = 1, model: Any = None) -> Any:
    model = model or network(depth)
    capture_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    capture_optimizer(optimizer)
    return model, optimizer


def update(model: Any, optimizer: Any) -> None:
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    optimizer.zero_grad()


def clamp_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.2, 0.2)


def replace_data(model: Any) -> None:
    model[0].weight.data = model[0].weight.data.clamp(-0.2, 0.2)


def write_numpy(model: Any) -> None:
    memory = model[0].weight.data.numpy()
    memory *= 0.9


@torch.no_grad()
def set_memory(model: Any) -> None:
    model[0].weight.set_(torch.full((8, 6), 0.1))


@torch.no_grad()
def write_as_another_class(model: Any) -> None:
    model[0].weight.as_subclass(torch.Tensor).mul_(0.9)


@torch.no_grad()
def scale_all(model: Any) -> None:
    torch._foreach_mul_(list(model.parameters()), 0.9)


@torch.no_grad()
def write_one(model: Any) -> None:
    model[0].weight[0, 0] = 0.5


EDITS = [
    clamp_data,
    replace_data,
    write_numpy,
    scale_all,
    write_one,
    set_memory,
    write_as_another_class,
    lambda model: model[0].weight.detach().clamp_(-0.2, 0.2),
    lambda model: nn.init.zeros_(model[0].bias),
    lambda model: nn.init.constant_(model[0].weight, 0.05),
    lambda model: (torch.manual_seed(3), nn.init.normal_(model[0].weight, std=0.1)),
    lambda model: (torch.manual_seed(3), nn.init.kaiming_uniform_(model[0].weight)),
    lambda model: nn.utils.vector_to_parameters(
        nn.utils.parameters_to_vector(model.parameters()) * 0.9, model.parameters()
    ),
]


@pytest.mark.parametrize("edit", EDITS)
def test_edits_reach_the_device(edit: Callable[[Any], Any]) -> None:
    """Whichever way PyTorch has of writing into a weight, the native weights come out, by one upload for each edit."""
    native = network()
    own = torch.optim.AdamW(native.parameters(), lr=0.05)
    model, optimizer = prepared()
    for net, optim in ((native, own), (model, optimizer)):
        for _ in range(UPDATES):
            update(net, optim)
            edit(net)
    count = counters(model)
    assert (count.weight_downloads, count.weight_uploads) == (UPDATES, UPDATES)
    torch.testing.assert_close(model.state_dict(), native.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "read", [lambda model: None, lambda model: model[0].weight.norm(), lambda model: model[0].weight.data.norm()]
)
def test_reading_uploads_nothing(read: Callable[[Any], Any]) -> None:
    """Reading weights downloads them; only written ones go back."""
    model, optimizer = prepared()
    for _ in range(UPDATES):
        update(model, optimizer)
        read(model)
    assert counters(model).weight_uploads == 1


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("backward_first", [False, True])
@pytest.mark.parametrize("edit", EDITS)
def test_edits_between_a_call_and_its_update_are_refused(
    edit: Callable[[Any], Any], backward_first: bool, updates: int
) -> None:
    """PyTorch has computed the gradient from the weights before, which the device no longer has."""
    model, optimizer = prepared()
    for _ in range(updates):
        update(model, optimizer)
    output = model(X)
    if not backward_first:
        edit(model)
    F.cross_entropy(output, Y).backward()
    if backward_first:
        edit(model)
    with pytest.raises(CaptureError, match=r"test_edits\.py.*weights or buffers of Sequential were written after that"):
        optimizer.step()


def sharpness_aware(model: Any, optimizer: Any, native: bool) -> List[float]:
    """Update as PyTorch users write it, and as docs/loops.md does: of moved weights, from the previous ones."""
    losses = []
    for _ in range(5):
        copied = model if native else copy.deepcopy(model)
        loss = F.cross_entropy(copied(X), Y)
        loss.backward()
        moves = [0.05 * weight.grad.clone() for weight in copied.parameters()]
        before = [weight.detach().clone() for weight in model.parameters()]
        with torch.no_grad():
            for weight, move in zip(model.parameters(), moves):
                weight.add_(move)
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        if native:
            for weight, value in zip(model.parameters(), before):
                weight.data = value
        optimizer.step()
        if not native:
            with torch.no_grad():
                for weight, move in zip(model.parameters(), moves):
                    weight.sub_(move)
        optimizer.zero_grad()
        losses.append(loss.item())
    return [*losses, *(float(weight.detach().double().norm()) for weight in model.parameters())]


def test_two_steps_for_an_update_have_the_numbers_of_pytorch() -> None:
    """The order that the refusal of the other one leads to, with momentum."""
    found = []
    for native in (True, False):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if not native:
            ipu_prepare(optimizer, model)
        found.append(sharpness_aware(model, optimizer, native))
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_edits_between_the_calls_of_an_update_are_refused() -> None:
    """Until the gradients are cleared; also where the model is called, or evaluated, once more after the edit."""
    model, optimizer = prepared()
    for evaluate in (False, True):
        F.cross_entropy(model(X), Y).backward()
        scale_all(model)
        if evaluate:
            model.eval()(X)
            model.train()
        F.cross_entropy(model(X), Y).backward()
        for _ in range(2):
            with pytest.raises(CaptureError, match="were written after that"):
                optimizer.step()
        optimizer.zero_grad()
    update(model, optimizer)


def test_looking_and_moving_between_a_call_and_its_update() -> None:
    """Reading weights, and moving a model to where it is, change nothing."""
    model, optimizer = prepared()
    update(model, optimizer)
    output = model(X)
    model[0].weight.data.norm()
    model.to("cpu").float()
    F.cross_entropy(output, Y).backward()
    model.state_dict()
    optimizer.step()
    assert counters(model).weight_uploads == 1


def test_an_edit_through_an_old_alias_reaches_the_device() -> None:
    """A result of detach() from before a step has the newest weights after it, and a write into it is one into them."""
    model, optimizer = prepared()
    update(model, optimizer)
    alias = model[0].weight.detach()
    update(model, optimizer)
    alias.zero_()
    assert not model[0].weight.any()
    output = model(X)
    torch.testing.assert_close(output.detach()[0], output.detach()[1])
    F.cross_entropy(output, Y).backward()
    optimizer.step()


def test_freezing_without_a_call_of_train_is_noticed() -> None:
    """A layer frozen in the middle of an epoch keeps its weights from then on, and a dropout can be switched off."""
    model, optimizer = prepared(model=nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    update(model, optimizer)
    model[0].weight.requires_grad_(False)
    before = model[0].weight.detach().clone()
    update(model, optimizer)
    assert torch.equal(model[0].weight, before)
    compilations = captured(model).compilations  # type: ignore[union-attr]
    model[1].eval()
    update(model, optimizer)
    assert captured(model).compilations == compilations + 1  # type: ignore[union-attr]


def test_an_iteration_does_the_same_work_for_any_number_of_weights() -> None:
    """As many Python and C functions are called for 6 weights as for 206."""
    assert calls_of_an_iteration(1) == calls_of_an_iteration(101)


def calls_of_an_iteration(depth: int) -> List[str]:
    """Return the names of the functions called by one captured iteration, without those of the device call."""
    model, optimizer = prepared(depth)
    update(model, optimizer)
    calls: List[str] = []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)
        elif event == "c_call":
            calls.append(argument.__name__)

    executor = captured(model).session.training.executor  # type: ignore[union-attr]
    with mock.patch.object(type(executor), "__call__", return_value=[torch.zeros(())]):
        update(model, optimizer)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            update(model, optimizer)
        finally:
            sys.setprofile(before)
    return calls


def counters(model: Any) -> Any:
    capture = captured(model)
    assert capture is not None and capture.session.training is not None
    return backend.poptorch().counters(capture.session.training.executor)


class Counting(nn.Module):
    """Counts samples in a method of its own, which calls its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()
        self.register_buffer("seen", torch.zeros(()))

    def loss(self, count: Callable[[Any], Any]) -> torch.Tensor:
        scores = self.body(X)
        count(self)
        return F.cross_entropy(scores, Y)


def count(model: Any) -> None:
    model.seen += len(X)


def write_weight(model: Any) -> None:
    with torch.no_grad():
        model.body[1].bias.zero_()


def test_edits_of_what_a_call_does_not_read_are_no_edits_for_it() -> None:
    found = []
    for captures in (False, True):
        model: Any = Counting()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = ipu_prepare(optimizer, model) if captures else optimizer
        for _ in range(UPDATES):
            optimizer.zero_grad()
            model.loss(count).backward()
            optimizer.step()
        found.append(model.state_dict())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
    assert found[1]["seen"] == UPDATES * len(X)


def test_edits_of_what_a_call_reads_are_edits_for_it() -> None:
    model: Any = Counting()
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model.loss(count).backward()
    optimizer.step()
    optimizer.zero_grad()
    model.loss(write_weight).backward()
    with pytest.raises(CaptureError, match=r"weights or buffers of .* were written after that"):
        optimizer.step()


def multiply_data(model: Any) -> None:
    model[2].weight.data.mul_(0.5)


def set_data(model: Any) -> None:
    model[2].weight.data = model[2].weight.data * 0.5


def add_detached(model: Any) -> None:
    model[2].weight.detach().add_(0.5)


class WithStatistics(nn.Module):
    """Layers with batch statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


@pytest.mark.parametrize("update", ["auto", "host"])
@pytest.mark.parametrize("write", [multiply_data, set_data, add_detached])
def test_gradients_of_weights_that_are_written_after_the_forward_are_pytorchs(
    write: Callable[[Any], Any], update: Any
) -> None:
    """Those of the earlier results with the later weights, or PyTorch's error for a write that it counts."""
    torch.manual_seed(0)
    native = WithStatistics()
    seen: List[List[Any]] = []
    for model in (native, copy.deepcopy(native)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if model is not native:
            ipu_prepare(optimizer, model, config=IPUConfig(update=update))
        seen.append([])
        for number in range(3):
            optimizer.zero_grad()
            scores = model(X)
            if number:
                write(model.layers)
            loss = F.cross_entropy(scores, Y) + model.layers[0].weight.pow(2).sum() + model(X * 2).pow(2).mean()
            write(model.layers)
            try:
                loss.backward()
            except RuntimeError as error:
                seen[-1].append("modified by an inplace operation" in str(error))
                break
            optimizer.step()
            seen[-1] += [loss.item(), *[each.grad.tolist() for each in model.parameters()]]
        else:
            seen[-1] += [each.tolist() for each in model.state_dict().values()]
    assert len(seen[0]) == len(seen[1]) and (len(seen[0]) == 1) is (write is add_detached)
    for ours, theirs in zip(seen[1], seen[0]):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)


def test_gradients_of_a_mixture_are_refused_with_random_numbers() -> None:
    """The host would draw others than the device."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.1), model, config=IPUConfig(update="host"))
    loss = F.cross_entropy(model(X), Y)
    multiply_data(model)
    with pytest.raises(CaptureError, match="the loss has no random numbers"):
        loss.backward()
    optimizer.zero_grad()
