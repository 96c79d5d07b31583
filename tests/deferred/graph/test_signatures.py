"""Shapes of a call's results are known before it runs, also for functions without a meta kernel in PyTorch."""

from __future__ import annotations

import copy
from typing import Any, Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ignite_ipu.emulator as poptorch
from ignite_ipu.deferred import capture_model, capture_optimizer, captured
from ignite_ipu.deferred.graph import signatures
from ignite_ipu.deferred.graph.leaves import Input
from ignite_ipu.deferred.graph.structure import flatten
from ignite_ipu.deferred.tensor import recording
from ignite_ipu.program.user_code import current_line

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(12, 3, 4, generator=GENERATOR)
TARGETS = torch.randint(1, 6, (3, 4), generator=GENERATOR)


def compilations_of(classes: int, train: Callable[..., Iterator[torch.Tensor]]) -> int:
    """Train a layer in PyTorch and captured, for the same losses and weights; returns the number of compilations."""
    torch.manual_seed(0)
    native = nn.Linear(4, classes)
    model = copy.deepcopy(native)
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    expected = list(train(native, torch.optim.SGD(native.parameters(), lr=0.1)))
    losses = list(train(model, optimizer))
    assert list(map(float, losses)) == pytest.approx(list(map(float, expected)), rel=1e-5)
    torch.testing.assert_close(model.state_dict(), native.state_dict())
    capture = captured(model)
    assert capture is not None
    return capture.compilations


def unbatched(scores: torch.Tensor, targets: torch.Tensor, used: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    return F.ctc_loss(scores[:, 0], targets[0], used[0], sizes[0])


def concatenated(scores: torch.Tensor, targets: torch.Tensor, used: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    return F.ctc_loss(scores, torch.cat([row[:3] for row in targets]), used, torch.full((3,), 3))


@pytest.mark.parametrize("loss", [F.ctc_loss, nn.CTCLoss(reduction="sum", zero_infinity=True), unbatched, concatenated])
def test_ctc_loss_with_lengths_in_tensors(loss: Callable[..., torch.Tensor]) -> None:
    """Losses and weights are the native ones, by one program, while lengths change and gradients accumulate."""

    def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
        for step in range(6):
            used, sizes = torch.tensor([12, 11, 12 - step]), torch.tensor([4, 3, 1 + step % 3])
            value = loss(net(X).log_softmax(-1), TARGETS, used, sizes)
            assert value.shape == ()
            value.backward()
            yield value.detach()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()

    assert compilations_of(6, train) == 1


def test_ctc_loss_of_each_sample() -> None:
    """It has the shape of eager PyTorch; for the device it has to be reduced, which the error at the call requires."""
    model = nn.Linear(4, 6)
    capture_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture_optimizer(optimizer)
    sizes = torch.tensor([4, 3, 2])
    losses = F.ctc_loss(model(X).log_softmax(-1), TARGETS, torch.full((3,), 12), sizes, reduction="none")
    assert losses.shape == (3,)
    losses.mean().backward()
    with pytest.raises(poptorch.Error, match=r'ctc_loss: reduction="none" is .*used at .*test_signatures\.py'):
        optimizer.step()


@pytest.mark.parametrize("draw", [torch.multinomial, torch.Tensor.multinomial])
def test_drawn_indices(draw: Callable[..., torch.Tensor]) -> None:
    """They have the shape and type of eager PyTorch."""
    model = nn.Linear(4, 6)
    capture_model(model)
    capture_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scores = model(X[0]).softmax(-1)
    for many, given in ((draw(scores, 2), (3, 2)), (draw(scores[0], num_samples=1, replacement=True), (1,))):
        assert (tuple(many.shape), many.dtype) == (given, torch.int64)


@pytest.mark.parametrize(
    ("function", "others"),
    [
        *((each, ()) for each in (F.dropout, F.dropout1d, F.alpha_dropout, F.gumbel_softmax, torch.randn_like)),
        *((torch.Tensor.bernoulli, ()), (torch.multinomial, (2,)), (torch.exp, ())),
        (lambda scores: F.dropout(scores, training=False), ()),
        (lambda scores: F.scaled_dot_product_attention(scores, scores, scores), ()),
        (lambda scores: F.scaled_dot_product_attention(scores, scores, scores, dropout_p=0.5), ()),
    ],
)
def test_functions_that_draw_random_numbers_are_found(function: Callable[..., torch.Tensor], others: Any) -> None:
    """They are those that move PyTorch's generator."""
    scores = torch.full((3, 4), 0.25)
    structure = flatten(((scores, *others), {}), [])
    found = signatures.inferred_signature(function, structure, [Input(scores)], True, current_line())
    before = torch.get_rng_state()
    function(scores, *others)
    assert found.draws == (not torch.equal(before, torch.get_rng_state()))


def test_keyword_arguments_that_change_from_step_to_step() -> None:
    """A call with the keyword arguments of one before is of its kind, whatever came in between."""
    x = torch.randn(8, 4, generator=GENERATOR)
    y = torch.randint(0, 5, (8,), generator=GENERATOR)

    def train(net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
        for step in range(24):
            scores = net(x)
            loss = F.cross_entropy(scores, y, ignore_index=step % 3, reduction=("sum", "mean")[step % 2])
            loss = loss + F.mse_loss(scores, x.new_ones(8, 5), reduction=("mean", "sum")[step % 2])
            loss = torch.add(loss, other=step * 0.5) + torch.add(scores.mean(), scores.sum(), alpha=step % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.detach()

    # Six bodies, each once with its first number and once for all others.
    assert compilations_of(5, train) == 12


def test_whole_numbers_leave_other_calls_of_a_function_as_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a call with an `int`, those of tensors alone are looked up, too: each kind is recorded at length once."""
    lengthy = []
    monkeypatch.setattr(recording, "inferred_signature", lambda *args: lengthy.append(args[0]) or inferred(*args))
    inferred = signatures.inferred_signature
    model = nn.Linear(4, 3)
    capture_model(model)
    counts, total = torch.arange(3), torch.zeros(3)
    for _ in range(2):
        output = model(X[0]).sum(0).detach()
        shifted = output + 1 + 2.5
        for _ in range(5):
            total = total + output
        more = [output.argmax() + counts, output.argmax() + 1, output.argmax() + 2]
    assert len(lengthy) < 16
    expected = model.weight.detach().new_tensor(total.tolist()) / 10
    assert shifted.tolist() == pytest.approx((expected + 3.5).tolist(), rel=1e-5)
    place = int(expected.argmax())
    assert [more[0].tolist(), *map(int, more[1:])] == [[place, place + 1, place + 2], place + 1, place + 2]
