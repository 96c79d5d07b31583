"""Writes of a loop into computed tensors give PyTorch's results, though nothing is written on the device."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, Tuple

import pytest
import torch
from torch import nn

from ignite_ipu import IPUConfig, ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer
from ignite_ipu.deferred.tensor.in_place import out_of_place

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


def write_into_new_ones(scores: torch.Tensor, step: int) -> None:
    scores.mul_(scores.new().resize_as_(scores).fill_(0.5 + step)).add_(scores.new(1, 3).zero_() + scores.new([step]))


def fill_diagonal(scores: torch.Tensor, step: int) -> None:
    scores.fill_diagonal_(-3.0)


def fill_diagonals(scores: torch.Tensor, step: int) -> None:
    scores.fill_diagonal_(float(step), wrap=True)


def multiply_and_add(scores: torch.Tensor, step: int) -> None:
    weights = torch.arange(18.0).reshape(6, 3) / 18
    scores.addmm_(X, weights, beta=0.5, alpha=float(step)).addr_(X[:, 0], weights[0])


def fractions(scores: torch.Tensor, step: int) -> None:
    scores.addcdiv_(X[:, :3], X[:, 3:].square() + 1, value=0.1).subtract_(X[:, :1], alpha=0.5).multiply_(0.5)


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
    capture_model(model)
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
        write_into_new_ones,
        fill_diagonal,
        fill_diagonals,
        multiply_and_add,
        fractions,
    ],
)
def test_writes_into_parts(write: Callable[[torch.Tensor, int], None]) -> None:
    """Losses and weights are the native ones, also of values computed before the write."""
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
    noise = model(X) * 0
    with pytest.raises(CaptureError, match=r"normal_ at .*test_in_place.py:\d+ .*torch.randn_like\(x\)"):
        noise.normal_()


def test_a_part_is_written_from_another_part() -> None:
    """The view that is read in the same statement does not stand in the way."""
    model, optimizer = prepared()
    native = copy.deepcopy(model)
    values = []
    for net, update in ((native, torch.optim.SGD(native.parameters(), lr=0.1)), (model, optimizer)):
        scores = net(X)
        scores[:, 0] = scores[:, 1] * 2
        scores.pow(2).mean().backward()
        update.step()
        values.append(scores.detach())
    torch.testing.assert_close(values[1], values[0])
    torch.testing.assert_close(model.state_dict(), native.state_dict())


class Sharing(nn.Module):
    """Returns a tensor that shares memory with another."""

    offset: torch.Tensor

    def __init__(self, what: str) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("offset", torch.zeros(8, 3))
        self.what = what

    def forward(self, x: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        scores = self.linear(x)
        kept = {"scores": scores[:, 0], "input": x[:, 0], "buffer": self.offset[:, 0], "nothing": scores.exp()}[
            self.what
        ]
        return kept, scores


@pytest.mark.parametrize("place", [0, 1])
def test_outputs_that_share_memory_are_left_alone(place: int) -> None:
    """In PyTorch another output has the new values, too."""
    model = Sharing("scores")
    capture_model(model)
    outputs = model(X)
    with pytest.raises(CaptureError, match="shares memory with another tensor"):
        outputs[place][0] = 1.0
    with pytest.raises(CaptureError, match="shares memory with another tensor"):
        outputs[place].mul_(2)


@pytest.mark.parametrize("what", ["input", "buffer"])
def test_outputs_with_the_memory_of_an_argument_or_a_buffer_are_written_there(what: str) -> None:
    """Both are the caller's, and have the new values as in PyTorch."""
    found = []
    for captured in (False, True):
        model, x = Sharing(what), X.clone()
        if captured:
            capture_model(model)
        kept, _ = model(x)
        kept[0] = 1.0
        kept.mul_(2)
        found.append([x, kept.detach(), model.offset.clone()])
    torch.testing.assert_close(found[1], found[0])


def test_an_argument_that_is_written_through_an_output_is_refused_in_the_update() -> None:
    """PyTorch refuses to compute gradients from it, too."""
    model = Sharing("input")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_model(model)
    capture_optimizer(optimizer)
    kept, scores = model(X.clone())
    kept.mul_(2)
    scores.pow(2).mean().backward()
    with pytest.raises(CaptureError, match=r"changed in place afterwards"):
        optimizer.step()


def test_outputs_of_their_own_are_written_into() -> None:
    """Outputs of a model beside another one may change."""
    model = Sharing("nothing")
    capture_model(model)
    for output in model(X):
        output[0] = 1.0
        output *= 2


def arguments() -> List[Tuple[Any, ...]]:
    """Return arguments for a tensor of shape (3, 3); each operator takes some of them."""
    other = torch.rand(3, 3, generator=torch.Generator().manual_seed(2)) + 0.5
    index, mask = torch.tensor([0, 2]), other > 1
    columns, rows = other[:, :2], torch.zeros(1, 3).long()
    found: List[Tuple[Any, ...]] = [(), (0,), (2,), (0.25,), (other,), (mask,), (other.int(),)]
    found += [
        (0.1, 0.9),
        (other, other),
        (other[0], other[0]),
        (other, other[0]),
        (2, 0, 1.0),
        (mask, 0.5),
        (mask, other),
    ]
    found += [(1, index, 0.5), (1, index, columns), (1, index, columns, "mean"), ((index,), other[:2])]
    found += [(0, rows, other), (0, rows, other, "sum"), (torch.tensor([0, 4]), other[0, :2])]
    return [*found, (torch.stack([other, other]), torch.stack([other, other]))]


def test_the_function_without_underscore_computes_what_is_written() -> None:
    """By PyTorch's schemas some 100 operators have one: same arguments, same values, where the type stays the same."""
    tensor = torch.rand(3, 3, generator=torch.Generator().manual_seed(1)) + 0.5
    compared = set()
    for name in (
        name for name in dir(torch.Tensor) if name[0] != "_" and name != "fill_diagonal_" and out_of_place(name)
    ):
        for start in (tensor, (tensor * 4).int(), tensor > 1):
            for given in arguments():
                written = start.clone()
                try:
                    getattr(written, name)(*given)
                except (RuntimeError, TypeError, IndexError, ValueError, UserWarning):
                    continue  # the operator does not take them
                expected = out_of_place(name)(start, *given)  # type: ignore[misc]
                if expected.dtype == written.dtype and expected.shape == written.shape:
                    torch.testing.assert_close(written, expected, rtol=0, atol=0, equal_nan=True)
                    compared.add(name)
    assert len(compared) > 100 and {"addmm_", "addr_", "nan_to_num_", "masked_scatter_", "cumsum_"} <= compared


@pytest.mark.parametrize(
    "name", ["normal_", "bernoulli_", "uniform_", "resize_", "resize_as_", "t_", "squeeze_", "map_"]
)
def test_what_draws_or_changes_shapes_has_none(name: str) -> None:
    """Nor has one whose name without the underscore is another function, as `bernoulli`."""
    assert out_of_place(name) is None


@pytest.mark.parametrize("update", ["auto", "device", "host"])
def test_a_weighting_is_detached_in_place(update: str) -> None:
    """No gradient flows through it, as after `x = x.detach()`."""
    seen = []
    for captures in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        if captures:
            ipu_prepare(model, optimizer, config=IPUConfig(update=update))
        for _ in range(3):
            optimizer.zero_grad()
            scores = model(torch.ones(2, 4))
            weighting = scores.softmax(-1)
            assert weighting.detach_() is weighting and not weighting.requires_grad
            (weighting * scores).sum().backward()
            optimizer.step()
        seen.append({name: each.clone() for name, each in model.state_dict().items()})
    torch.testing.assert_close(seen[1], seen[0])
