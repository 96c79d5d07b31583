"""Tensors that take a shape or a type from values of the step, and indices that are such values, give PyTorch's."""

from __future__ import annotations

import copy
from typing import Any, Callable, List

import pytest
import torch
from torch import nn

from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer, captured

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(2, (8, 4), generator=torch.Generator().manual_seed(2))


def both(losses: Callable[[torch.Tensor, int], List[Any]]) -> Any:
    """Train on losses of the scores in PyTorch and captured, compare them and the weights, and return the capture."""
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    native = copy.deepcopy(model)
    capture_model(model)
    found = []
    for trained in (native, model):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        if trained is model:
            capture_optimizer(optimizer)
        rows = []
        for step in range(3):
            terms = losses(trained(X), step)
            optimizer.zero_grad()
            sum(terms).backward()
            optimizer.step()
            rows.append([term.item() for term in terms])
        found.append((torch.tensor(rows), trained.state_dict()))
    torch.testing.assert_close(found[1], found[0])
    return captured(model)


def masks(scores: torch.Tensor) -> List[torch.Tensor]:
    """Return masks of the host that have nothing but the shape and type of the scores."""
    holds = Y > 0
    written, first = torch.zeros_like(scores, dtype=torch.bool), scores.new_zeros(scores.shape)
    written[holds] = True
    first[:, :3] = 1
    return [
        holds[:, :1].expand_as(scores),
        (Y + 1).view_as(scores) > 1,
        Y.reshape_as(scores).type_as(scores) > 0,
        written,
        first > 0,
        scores.new_tensor(Y.tolist()) > 0,
        torch.zeros_like(scores).scatter_(1, Y[:, :1] * 3, 1.0) > 0,
        torch.broadcast_tensors(holds[:, :1], scores)[0],
        torch.where(holds, torch.ones_like(scores), torch.zeros_like(scores)).bool(),
        torch.full_like(scores, 2.0).tril() > 1,
    ]


def test_masks_in_the_shape_of_values() -> None:
    """The host has their values at any time: they select, count and decide, and need no value of the scores."""

    def losses(scores: torch.Tensor, step: int) -> List[Any]:
        found = masks(scores)
        terms = [scores[mask].square().sum() / int(mask.sum()) for mask in found]
        assert found[0].tolist() == (Y[:, :1] > 0).expand(8, 4).tolist()
        return [*terms, scores.masked_select(found[3]).mean(), scores[:, : found[4][0].sum()].mean()]

    capture = both(losses)
    assert capture.compilations == 1


def test_masks_of_values() -> None:
    """They are read, and select from tensors of the step and of the host; gradients flow through what they select."""

    def losses(scores: torch.Tensor, step: int) -> List[Any]:
        large, first = scores > scores.detach().mean(), scores[:, 0] > scores[:, 1]
        each = scores.square().mean(1)
        hard = each[each >= each.detach().median()]
        selected = [scores.masked_select(large), torch.masked_select(scores, first[:, None])]
        tripled, rows, none = scores * 1.0, torch.zeros_like(scores), scores * 1.0
        tripled[large] = tripled[large] * 3
        rows[first, 1] = scores[first, 2]
        none[scores > 100] *= 2
        selected += [tripled, rows, none]
        return [
            *[scores[large].sum(), X[first].sum() * each.mean(), scores[first, 1:].mean(), hard.mean()],
            *[chosen.square().mean() for chosen in selected],
        ]

    both(losses)


def test_a_mask_of_the_device_s_draws() -> None:
    """The host would draw others, and select what the update does not."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5))
    capture_model(model)
    capture_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scores = model(X)
    for select in (lambda: scores[scores > 0], lambda: scores.masked_select(scores > 0)):
        with pytest.raises(CaptureError, match=r"computes a tensor whose size depends on values.*getitem"):
            select()


def test_a_place_that_is_read_before_the_update() -> None:
    """It is no constant of the program: several calls of an update may have others, as the actions of an episode."""

    def losses(scores: torch.Tensor, step: int) -> List[Any]:
        picked = [row.argmax() for row in scores]
        assert all(0 <= int(each) < 4 for each in picked)
        return [row.softmax(0)[each].log() for row, each in zip(scores, picked)]

    assert both(losses).compilations == 1


def place(scores: torch.Tensor) -> torch.Tensor:
    return scores.argmax(1)[0]


@pytest.mark.parametrize(
    "term",
    [
        lambda scores: scores[1, place(scores)],
        lambda scores: scores.unflatten(1, (2, 2))[..., None, place(scores) % 2, 1:].sum(),
        lambda scores: scores[place(scores), :, None][[0, 2]].sum() + torch.arange(8.0)[-place(scores)],
    ],
)
def test_elements_at_computed_places(term: Any) -> None:
    """A value without dimensions that the device computes selects an element, also one of a tensor of the host."""
    both(lambda scores, step: [term(scores) + scores.square().mean()])


def test_writes_at_computed_places() -> None:
    """They select the element that is written into."""

    def losses(scores: torch.Tensor, step: int) -> List[Any]:
        marks, copied = torch.zeros(2, 4, 3), scores * 1.0
        marks[:, place(scores)] = torch.arange(3.0)
        copied[place(scores), 1:, None] = scores[:3, :1]
        return [(marks.sum((0, 2)) * scores).mean(), copied.square().mean()]

    both(losses)


def test_draws_into_tensors_in_the_shape_of_values() -> None:
    """The host draws them, as in PyTorch."""

    def losses(scores: torch.Tensor, step: int) -> List[Any]:
        noise = torch.empty_like(scores).normal_(generator=torch.Generator().manual_seed(step))
        torch.manual_seed(step)
        drawn = [torch.randn_like(scores.t()), torch.rand_like(scores, dtype=torch.float32).t()]
        kept = torch.bernoulli(torch.full_like(scores, 0.5))
        assert int(kept.sum()) == int(kept.sum())
        noisy = (scores * kept + noise + torch.randint_like(scores, 3)).square().mean()
        assert noisy.item() > 0  # before the update
        return [noisy, *[(scores.t() * each).square().mean() for each in drawn]]

    both(losses)


def test_other_names_of_elements_at_computed_places() -> None:
    """A view at a place that only the device knows is not written into, which would change the whole tensor."""
    model = nn.Linear(6, 4)
    capture_model(model)
    capture_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scores = model(X) * 1
    row = scores[place(scores)]
    with pytest.raises(CaptureError, match="shares memory with another tensor since getitem"):
        row += 1
