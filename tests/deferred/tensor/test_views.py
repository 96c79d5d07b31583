"""Writes into views of tensors of a step: every tensor that shares the memory has the values of plain PyTorch."""

from __future__ import annotations

import copy
from typing import Callable, Dict, List, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu import ipu_prepare
from ignite_ipu.errors import CaptureError
from ignite_ipu.torch_names.tensors import sharers_of

Tensor = torch.Tensor
X = torch.rand(8, 6, generator=torch.Generator().manual_seed(1))
Call = Callable[[Tensor], Tensor]


def boxes(call: Call) -> Tensor:
    """Write parts of predictions, as losses of detectors do."""
    found = call(X).view(8, 2, 2)
    found[..., 0] = found[..., 0].sigmoid()
    found[..., 1] = found[..., 1].exp() * 0.1
    return found


def scaled_part(call: Call) -> Tensor:
    scores = call(X)
    scores[:, 1:3] *= 2
    return scores


def view_before(call: Call) -> Tensor:
    scores = call(X)
    first = scores[:, 0]
    scores *= 3
    return first * scores.sum(1)


def written_through_a_view(call: Call) -> Tensor:
    scores = call(X)
    row, column = scores[0], scores[:, 1]
    row *= 2
    column.add_(1)
    return scores * row


def parts(call: Call) -> Tensor:
    scores = call(X)
    left, right = scores[:, :2], scores.narrow(1, 2, 2)
    with_rest = scores.t()
    left.mul_(2)
    return scores.sum() * right.sum() + with_rest[0].pow(2).sum()


def view_of_a_view(call: Call) -> Tensor:
    scores = call(X)
    inner = scores.view(4, 8)[1:3][0]
    inner += scores[0, 0]
    return scores


def turned(call: Call) -> Tensor:
    """Write through a view that PopTorch does not follow."""
    scores = call(X)
    turned = scores.t()
    turned[1:3] *= torch.tensor([[2.0], [3.0]])
    scores.diagonal().add_(1)
    return scores * turned.sum()


def every_second(call: Call) -> Tensor:
    scores = call(X)
    scores[::2].mul_(3)
    return scores


def read_before(call: Call) -> Tensor:
    scores = call(X)
    before = (2 * scores).sum()
    scores[2:4].zero_()
    return before * scores.exp().sum()


def windows(call: Call) -> Tensor:
    """Add predictions of windows into a tensor of zeros."""
    whole, often = torch.zeros(8, 6), torch.zeros(6)
    for start in (0, 2):
        whole[:, start : start + 4] += call(X)
        often[start : start + 4] += 1
    return whole / often


def filled(call: Call) -> Tensor:
    """Fill a buffer with predictions of parts of a batch."""
    whole = torch.empty(8, 4)
    whole[:4] = call(X[:4].repeat(2, 1))[:4]
    whole[4:] = call(X[4:].repeat(2, 1))[:4]
    return whole


def copied(call: Call) -> Tensor:
    whole = torch.zeros(8, 4)
    whole.copy_(call(X))
    whole.masked_fill_(X[:, :4] > 0.5, 0.25)
    return whole


def slots(call: Call) -> Tensor:
    """Write two losses into the slots of one tensor."""
    scores, losses = call(X), torch.zeros(2)
    losses[0] += scores.pow(2).mean()
    losses[1] = scores.abs().mean()
    return losses


of_the_host = pytest.mark.skipif(sharers_of(X) is None, reason="this PyTorch does not count who shares memory")
PROGRAMS = (
    *(boxes, scaled_part, view_before, written_through_a_view, parts, view_of_a_view, turned, every_second),
    *(read_before, *[pytest.param(each, marks=of_the_host) for each in (windows, filled, copied, slots)]),
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_loss_of_written_views_trains_as_natively(program: Callable[[Call], Tensor]) -> None:
    torch.manual_seed(0)
    native = nn.Sequential(nn.Linear(6, 4))
    ported = copy.deepcopy(native)
    found: Dict[str, List[float]] = {}
    for name, model in (("native", native), ("ported", ported)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        if name == "ported":
            ipu_prepare(optimizer, model)
        losses = []
        for _ in range(2):
            loss = program(model).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found[name] = losses
    assert found["ported"] == pytest.approx(found["native"], rel=1e-5)
    torch.testing.assert_close(ported.state_dict(), native.state_dict())


def prepared() -> Tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(6, 4))
    return model, ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.05), model)


@of_the_host
def test_a_written_tensor_of_the_host_is_an_ordinary_one_after_the_step() -> None:
    model, optimizer = prepared()
    statistics = torch.zeros(3)
    for _ in range(2):
        loss = model(X).pow(2).mean()
        statistics[1] += loss.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert type(statistics) is torch.Tensor
        assert statistics[1] >= loss.item() > 0
    assert statistics[0] == statistics[2] == 0


@of_the_host
def test_a_memory_of_predictions_is_written_and_read_in_every_step() -> None:
    """The operations of the last step are kept for a repeated update, and with them the memory before it."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    own = torch.optim.SGD(native.parameters(), lr=0.05)
    results = []
    for net, update in ((native, own), (model, optimizer)):
        memory, index = torch.zeros(16, 4), torch.arange(8)
        for number in range(4):
            scores = net(X).softmax(1)
            memory[index + number] = 0.7 * memory[index + number] + 0.3 * scores.detach()
            (memory[index + number] * scores).sum(1).log().mean().backward()  # type: ignore[no-untyped-call]
            update.step()
            update.zero_grad()
        results.append(memory)
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(model.state_dict(), native.state_dict())


def test_a_tensor_whose_memory_was_written_under_another_name_is_not_read() -> None:
    model, optimizer = prepared()
    whole = torch.zeros(2, 8)
    row = whole[0]
    loss = model(X).pow(2).mean(1)
    row += loss.detach()
    assert whole.shape == (2, 8)
    with pytest.raises(CaptureError, match=r"written into its memory under another name"):
        whole.sum()
    loss.mean().backward()
    optimizer.step()
    assert type(whole) is torch.Tensor
    torch.testing.assert_close(whole[0], loss.detach() + 0)


@of_the_host
def test_a_tensor_that_others_share_is_not_written_into() -> None:
    model, _ = prepared()
    whole = torch.zeros(8, 4)
    flat = whole.view(-1)
    with pytest.raises(CaptureError, match=r"x\[\.\.\.\] = y at .* whose memory other tensors or arrays share"):
        whole[:] = model(X)
    assert not flat.any()


def test_a_detached_view_is_not_written_into() -> None:
    """PyTorch changes the values, and gradients flow as if nothing had happened."""
    model, _ = prepared()
    scores = model(X)
    detached = scores.detach()
    with pytest.raises(CaptureError, match=r"shares memory with another tensor since detach\(\)"):
        detached[0] = 1.0
    assert scores.shape == (8, 4)
