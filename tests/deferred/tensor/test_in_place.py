"""What a loop writes into computed tensors gives what it gives natively, though nothing is written on the device."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu.deferred import CaptureError, CaptureSettings, capture_model, capture_optimizer

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


def set_column(scores: torch.Tensor, step: int) -> None:
    scores[:, step % 3] = 0


def set_by_a_mask(scores: torch.Tensor, step: int) -> None:
    scores[Y > 0] = -1e3 * (step + 1)


def set_by_a_computed_mask(scores: torch.Tensor, step: int) -> None:
    scores[scores > 0] = 0.5


def set_by_indices(scores: torch.Tensor, step: int) -> None:
    scores[torch.arange(8), Y] = torch.tensor(float(step))


def set_inputs(scores: torch.Tensor, step: int) -> None:
    scores[2:4, :2] = X[:2, step : step + 2]


def set_computed(scores: torch.Tensor, step: int) -> None:
    scores[..., -1] = scores.tanh().sum(-1) + scores.mean(-1)


def set_twice(scores: torch.Tensor, step: int) -> None:
    scores[0] = 1.0
    scores[:, 1] = 2


def fill_diagonal(scores: torch.Tensor, step: int) -> None:
    scores.fill_diagonal_(-3.0)


def fill_diagonals(scores: torch.Tensor, step: int) -> None:
    scores.fill_diagonal_(float(step), wrap=True)


def smooth_targets(scores: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        targets = torch.zeros_like(scores)
        targets.fill_(0.05)
        targets.scatter_(1, Y.unsqueeze(1), value=0.9)
    return targets


def margins(scores: torch.Tensor) -> torch.Tensor:
    return scores.new_zeros(scores.shape).index_put_((torch.arange(8), Y), torch.tensor(0.35))


def sums_by_class(scores: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros_like(scores).scatter_add_(1, Y[:, None], X[:, :1])
    return sums.scatter_add_(0, Y[:, None].expand(8, 3), 2 * X[:, :3]).index_fill_(1, torch.tensor([2]), -1.0)


def other_rows(scores: torch.Tensor) -> torch.Tensor:
    rows = torch.empty_like(scores).copy_(X[:, 3:])
    return rows.index_put_((torch.tensor([1, 0]),), scores[:2].detach())


def overwritten_with_gradients(scores: torch.Tensor) -> torch.Tensor:
    kept = (scores * 3).scatter_(1, Y[:, None], scores.exp()[:, :1])
    return kept + (scores * 1).copy_(scores[:, :1]) + (scores * 1).zero_() + (scores * 1).fill_(scores.mean())


def element_by_element(scores: torch.Tensor) -> torch.Tensor:
    kept = (scores * 1).clamp_min_(-0.5).clamp_max_(0.5) + (scores * 1).square_().sub_(X[:, :3])
    kept += (scores.abs() + 1).rsqrt_() + (scores.abs() + 1).reciprocal_()
    kept += (scores * 1).addcmul_(scores, X[:, :3], value=0.5)
    kept += (scores * 9).round_() + (scores * 9).floor_() + (scores * 9).ceil_() + (scores * 1).sign_()
    return kept + (scores @ scores.T).relu_()[:, :3] + (scores @ scores.T).sigmoid_()[:, -3:]


def loop(model: Any, optimizer: Any, write: Callable[[torch.Tensor, int], None]) -> List[Any]:
    losses = []
    for step in range(4):
        scores = model(X + step) * 2
        before = scores.exp().mean()
        same = scores
        write(scores, step)
        losses.append(same.exp().mean() + before)
        losses[-1].backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def prepared() -> Tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    capture_model(model, CaptureSettings())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    return model, optimizer


@pytest.mark.parametrize(
    "write",
    [
        set_column,
        set_by_a_mask,
        set_by_a_computed_mask,
        set_by_indices,
        set_inputs,
        pytest.param(
            set_computed,
            marks=pytest.mark.skipif(torch.__version__.startswith("2.0."), reason="PyTorch 2.0 has no gradient of it"),
        ),
        set_twice,
        fill_diagonal,
        fill_diagonals,
    ],
)
def test_writes_into_parts(write: Callable[[torch.Tensor, int], None]) -> None:
    """Losses and weights are the native ones, of what was computed before the write, too."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    own = torch.optim.SGD(native.parameters(), lr=0.1)
    expected = loop(native, own, write)
    for mine, theirs in zip(loop(model, optimizer, write), expected):
        torch.testing.assert_close(mine.detach(), theirs.detach())
    torch.testing.assert_close(model.state_dict(), native.state_dict())


@pytest.mark.parametrize(
    "targets", [smooth_targets, margins, sums_by_class, other_rows, overwritten_with_gradients, element_by_element]
)
def test_writes_into_tensors_made_like_what_is_computed(targets: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Targets that a loop builds in place beside the model's output are those of PyTorch, and so are gradients."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    losses = []
    for net, update in ((native, torch.optim.SGD(native.parameters(), lr=0.1)), (model, optimizer)):
        for step in range(3):
            scores = net(X + step)
            losses.append((scores - targets(scores)).pow(2).mean())
            losses[-1].backward()
            update.step()
            update.zero_grad()
    for mine, theirs in zip(losses[3:], losses):
        torch.testing.assert_close(mine.detach(), theirs.detach())
    torch.testing.assert_close(model.state_dict(), native.state_dict())


def test_draws_in_place_are_refused_with_what_to_write_instead() -> None:
    """The message of a write that is not followed names the functions that draw within a step."""
    model, _ = prepared()
    noise = torch.empty_like(model(X))
    with pytest.raises(CaptureError, match=r"normal_ at .*test_in_place.py:\d+ .*torch.randn_like\(x\)"):
        noise.normal_()


def test_a_part_that_somebody_looks_into_is_left_alone() -> None:
    """A view would show what is written, which a copy does not; the way out is in the message."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    values = []
    for net, update in ((native, torch.optim.SGD(native.parameters(), lr=0.1)), (model, optimizer)):
        scores = net(X)
        if net is model:
            with pytest.raises(CaptureError, match=r"setitem at .*test_in_place\.py.*copy = x\.clone\(\)"):
                scores[:, 0] = scores[:, 1] * 2
        written = scores.clone()
        written[:, 0] = scores[:, 1] * 2
        written.pow(2).mean().backward()
        update.step()
        values.append(written.detach())
    torch.testing.assert_close(values[1], values[0])
    torch.testing.assert_close(model.state_dict(), native.state_dict())


class Sharing(nn.Module):
    """Returns what shares memory with something else."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("offset", torch.zeros(8, 3))
        self.what = what

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        scores = self.linear(x)
        kept = {"scores": scores[:, 0], "input": x[:, 0], "buffer": self.offset, "nothing": scores.exp()}[self.what]
        return kept, scores


@pytest.mark.parametrize(("what", "place"), [("scores", 0), ("scores", 1), ("input", 0), ("buffer", 0)])
def test_outputs_that_share_memory_are_left_alone(what: str, place: int) -> None:
    """Natively another output, the argument or the buffer has the new values, too."""
    model = Sharing(what)
    capture_model(model, CaptureSettings())
    outputs = model(X)
    with pytest.raises(CaptureError, match="shares memory with another tensor"):
        outputs[place][0] = 1.0
    with pytest.raises(CaptureError, match="shares memory with another tensor"):
        outputs[place].mul_(2)


def test_outputs_of_their_own_are_written_into() -> None:
    """What a model computes beside another output may change."""
    model = Sharing("nothing")
    capture_model(model, CaptureSettings())
    for output in model(X):
        output[0] = 1.0
        output *= 2
