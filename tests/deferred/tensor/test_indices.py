"""Indices on the host give PyTorch's results: whole numbers, boolean masks, and arrays of numpy."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Tuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer, captured

Part = Callable[[torch.Tensor], torch.Tensor]
X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def prepared() -> Tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return model, optimizer


def both(loop: Callable[[Any, Any], List[Any]]) -> nn.Module:
    """Run a loop in PyTorch and captured, compare results and weights, and return the captured model."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    expected = loop(native, torch.optim.SGD(native.parameters(), lr=0.1))
    for mine, theirs in zip(loop(model, optimizer), expected):
        torch.testing.assert_close(mine.detach(), theirs.detach())
    torch.testing.assert_close(model.state_dict(), native.state_dict())
    return model


def trained(part: Part) -> Callable[[Any, Any], List[Any]]:
    """Return a loop whose loss is computed from a part of the scores."""

    def loop(model: Any, optimizer: Any) -> List[Any]:
        values = []
        for _ in range(2):
            values.append(part(model(X)))
            values[-1].pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return values

    return loop


BOUND = torch.tensor(5)


@pytest.mark.parametrize(
    "part",
    [
        lambda scores: scores[:BOUND],
        lambda scores: scores[3, Y[1]],
        lambda scores: scores[1:BOUND, Y[0]],
        lambda scores: torch.stack([row[Y[number]] for number, row in enumerate(scores)]),
        lambda scores: scores[..., Y[1].to(torch.int32)],
        lambda scores: scores[torch.tensor([1, 0]), Y[2]],
        lambda scores: scores.narrow(0, 1, BOUND),
        lambda scores: scores.view(BOUND - 1, -1),
        lambda scores: torch.select(scores, 0, BOUND),
    ],
)
def test_whole_numbers(part: Part) -> None:
    """A tensor without dimensions is the number that it holds."""
    scores = both(trained(part))(X)
    with pytest.raises(CaptureError, match=r"getitem at .* needs values"):
        scores[: scores.argmax()]


ONES = Y > 0


@pytest.mark.parametrize(
    "part",
    [
        lambda scores: scores[ONES],
        lambda scores: scores[~ONES, 1:],
        lambda scores: scores[ONES, Y[ONES]],
        lambda scores: scores[:, torch.tensor([False, True])],
        lambda scores: scores[..., F.one_hot(Y, 2).bool()],
        lambda scores: scores[None, ONES, None],
        lambda scores: scores.unflatten(0, (2, 4))[..., torch.tensor([True, False, True, True]), :],
        lambda scores: scores[ONES.numpy(), 0],
        lambda scores: scores[ONES.to(torch.uint8)],
        lambda scores: scores.masked_select(F.one_hot(Y, 2).bool()),
        lambda scores: torch.masked_select(scores, mask=ONES[:, None]),
        lambda scores: scores.to_dense()[ONES],
        lambda scores: (scores @ scores.T)[~torch.eye(8, dtype=torch.bool)].view(8, 7),
    ],
)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8:UserWarning")
def test_masks(part: Part) -> None:
    """A boolean mask of the host selects where it holds."""
    both(trained(part))


def test_changing_masks() -> None:
    """Masks of the same number of elements are one program; another number is another, once."""
    counts = [3, 3, 5, 3, 5]

    def loop(model: Any, optimizer: Any) -> List[Any]:
        generator = torch.Generator().manual_seed(2)
        losses = []
        for count in counts:
            mask = torch.zeros(8, dtype=torch.bool)
            mask[torch.randperm(8, generator=generator)[:count]] = True
            losses.append(F.cross_entropy(model(X)[mask], Y[mask]))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        return losses

    capture = captured(both(loop))
    assert capture is not None and capture.compilations == 2


def test_masks_while_gradients_accumulate() -> None:
    """Micro-batches with masks of other sizes add their gradients up."""

    def loop(model: Any, optimizer: Any) -> List[Any]:
        losses = []
        for number in range(6):
            mask = torch.arange(8) % (2 + number % 4) == 0
            losses.append(model(X + number)[mask].pow(2).mean())
            losses[-1].backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        return losses

    both(loop)


def test_masks_of_another_shape() -> None:
    """They are refused, as in PyTorch."""
    scores = prepared()[0](X)
    with pytest.raises(IndexError, match=r"mask of shape \(3,\) selects from dimensions of shape \(8,\)"):
        scores[torch.tensor([True, False, True])]
    with pytest.raises(IndexError, match=r"mask of shape \(8,\) selects from dimensions of shape \(2,\)"):
        scores[..., ONES]


@pytest.mark.parametrize(
    "part",
    [
        lambda scores: scores[np.array([3, 1, 1])],
        lambda scores: scores[:, np.array([1, 0])],
        lambda scores: scores[np.arange(8), Y.numpy()],
        lambda scores: scores[np.array(2)],
        lambda scores: scores[np.int64(2) : np.array(5)],
    ],
)
def test_arrays(part: Part) -> None:
    """An array of numpy is the tensor of its numbers."""
    both(trained(part))


def test_arrays_after_the_update() -> None:
    """A known value is indexed by an array on the host, also one that was written in place before."""

    def loop(model: Any, optimizer: Any) -> List[Any]:
        values = []
        for _ in range(2):
            scores, total = model(X), torch.zeros(8)
            total += scores[:, 0]
            scores.pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            values += [scores[np.arange(8), Y.numpy()], scores.detach()[ONES.numpy()], total[np.array([1, 2])]]
        return values

    both(loop)


def test_arrays_that_change() -> None:
    """An array that is filled again before the update was read when it was an index; it is one program."""
    order = np.arange(8)

    def loop(model: Any, optimizer: Any) -> List[Any]:
        losses = []
        order[:] = np.arange(8)
        for _ in range(3):
            losses.append(F.cross_entropy(model(X)[order[:4]], Y[:4]))
            losses[-1].backward()
            # PyTorch's own backward reads the array's memory, too.
            order[:] = order[::-1].copy()
            optimizer.step()
            optimizer.zero_grad()
        return losses

    capture = captured(both(loop))
    assert capture is not None and capture.compilations == 1


NOTHING = torch.zeros(8, dtype=torch.bool)
NO_ROWS = torch.arange(0)


def set_by_mask(scores: torch.Tensor) -> torch.Tensor:
    scores[NOTHING] = 0.0
    return scores


def add_by_mask(scores: torch.Tensor) -> torch.Tensor:
    scores[NOTHING, 0] += 1.0
    return scores


def set_parts_of_itself(scores: torch.Tensor) -> torch.Tensor:
    scores[NOTHING] = scores[NOTHING] * 2
    return scores


def set_by_slice(scores: torch.Tensor) -> torch.Tensor:
    scores[2:2] = 1.0
    return scores


@pytest.mark.parametrize(
    "part",
    [
        set_by_mask,
        add_by_mask,
        set_parts_of_itself,
        set_by_slice,
        lambda scores: scores.index_fill_(0, NO_ROWS, 3.0),
        lambda scores: scores.index_copy_(0, NO_ROWS, torch.ones(0, 2)),
        lambda scores: torch.cat([torch.empty(0, 2), scores]),
        lambda scores: torch.cat(tensors=(scores, torch.empty(8, 0)), dim=1),
        lambda scores: torch.vstack([scores, torch.empty(0, 2)]),
    ],
)
def test_indices_and_tensors_without_elements(part: Part) -> None:
    """Nothing is written or joined, so that no operation has a tensor without elements."""
    both(trained(lambda scores: part(scores * 1)))


def test_a_value_of_other_weights_is_not_left_out() -> None:
    """PyTorch gives these weights gradients of zeros, which momentum and decay would use."""
    model, optimizer = prepared()
    other, _ = prepared()
    scores = model(X)
    scores[NOTHING] = other(X)[NOTHING]
    scores.sum().backward()
    with pytest.raises(CaptureError, match=r"selects nothing"):
        optimizer.step()
