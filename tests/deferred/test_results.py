"""Objects that a model makes and returns hold the results of the device, as in eager PyTorch."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Iterator, List

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import SigmoidTransform, TanhTransform, Transform

from ignite_ipu import ipu_prepare
from ignite_ipu.deferred import CaptureError, capture_model, capture_optimizer

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


class Answer:
    """An object with a result of its own, another in a list, and more that is no tensor."""

    def __init__(self, scores: torch.Tensor) -> None:
        self.scores, self.more, self.title = scores, [scores * 2], "answer"

    def loss(self) -> torch.Tensor:
        return F.cross_entropy(self.scores, Y) + 0.1 * self.more[0].pow(2).mean() * len(self.title)


class Slotted:
    __slots__ = ("answer", "empty")

    def __init__(self, scores: torch.Tensor) -> None:
        self.answer = Answer(scores)

    def loss(self) -> torch.Tensor:
        return self.answer.loss()


_KEPT = TanhTransform()


def squashed(scores: torch.Tensor, *transforms: Transform) -> TransformedDistribution:
    return TransformedDistribution(Normal(scores, 1.0), list(transforms))


def squashed_loss(given: TransformedDistribution) -> torch.Tensor:
    """Return a loss whose computation leaves results and inverses in the transforms."""
    drawn = X[:, 2:4]
    for transform in given.transforms:
        drawn = transform(drawn.sigmoid())
    return given.base_dist.mean.pow(2).mean() - given.log_prob(drawn).mean()


@dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """A dictionary whose entries are attributes, too, as the outputs of many models are."""

    scores: torch.Tensor

    def __post_init__(self) -> None:
        self["scores"] = self.scores


class Pair(tuple):  # type: ignore[type-arg]
    """A tuple with attributes, whose class is called with other arguments."""

    def __new__(cls, scores: torch.Tensor, factor: float) -> Any:
        made = super().__new__(cls, (scores, scores * factor))
        made.scores, made.twice = made[0], scores * 2
        return made


class Net(nn.Module):
    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.make = nn.Linear(6, 2), make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(self.layer(x))


def trained(make: Callable[[torch.Tensor], Any], loss_of: Callable[[Any], torch.Tensor], captures: bool) -> List[float]:
    """Return the losses of some updates and an evaluation."""
    model = Net(make)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if captures:
        capture_model(model)
        capture_optimizer(optimizer)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model(X))
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    with torch.no_grad():
        return [*seen, loss_of(model.eval()(X)).item()]


@pytest.mark.parametrize(
    ("make", "loss_of"),
    [
        (Answer, Answer.loss),
        (lambda scores: {"found": (Slotted(scores), 1)}, lambda given: given["found"][0].loss()),
        (Output, lambda given: F.cross_entropy(given.scores, Y) + 0.1 * given["scores"].pow(2).mean()),
        (
            lambda scores: Pair(scores, 3),
            lambda given: F.cross_entropy(given.scores, Y) + (given[1] * given.twice).mean(),
        ),
        (lambda scores: Categorical(logits=scores), lambda given: -given.log_prob(Y).mean() - given.entropy().mean()),
        (
            lambda scores: Independent(Normal(scores, F.softplus(scores) + 1), 1),
            lambda given: given.mean.pow(2).mean() - given.log_prob(X[:, :2]).mean(),
        ),
        (lambda scores: squashed(scores, TanhTransform(cache_size=1)), squashed_loss),
        (lambda scores: squashed(scores, SigmoidTransform().inv, _KEPT), squashed_loss),
    ],
    ids=[
        "of a class",
        "with slots, in a mapping",
        "entries as attributes",
        "tuple",
        "distribution",
        "distribution in another",
        "transform that caches",
        "inverse of a transform, and one that is kept",
    ],
)
def test_objects_that_forward_makes_hold_results(make: Any, loss_of: Any) -> None:
    expected = trained(make, loss_of, captures=False)
    assert trained(make, loss_of, captures=True) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda scores: (scores * factor for factor in (1, 2)),
        lambda scores: map(torch.tanh, [scores, 2 * scores]),
        lambda scores: {"one": scores, "two": 2 * scores}.values(),
    ],
    ids=["generator", "map", "view of values"],
)
@pytest.mark.parametrize(
    ("nest", "find"),
    [
        (lambda made: made, lambda given: given),
        (lambda made: {"found": [made]}, lambda given: given["found"][0]),
        (lambda made: dict(enumerate(made)).items(), lambda given: dict(given).values()),
    ],
    ids=["alone", "nested", "view of items"],
)
def test_iterators_and_views_give_results(make: Any, nest: Any, find: Any) -> None:
    """In updates and in evaluations, each item once."""

    def loss_of(given: Any) -> torch.Tensor:
        found = find(given)
        loss = sum((F.cross_entropy(each, Y) for each in found), torch.zeros(()))
        assert not isinstance(found, Iterator) or list(found) == []
        return loss

    expected = trained(lambda scores: nest(make(scores)), loss_of, captures=False)
    assert trained(lambda scores: nest(make(scores)), loss_of, captures=True) == pytest.approx(expected, rel=1e-4)


def test_an_iterator_without_an_end_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"returns a repeat of more than 4096 items.*Return a list"):
        trained(itertools.repeat, lambda given: F.cross_entropy(next(given), Y), captures=True)


def test_an_object_that_the_model_keeps_is_refused() -> None:
    """In eager PyTorch the object of an earlier call would get the results of a later one."""
    kept = Answer(torch.zeros(()))

    def keep(scores: torch.Tensor) -> Answer:
        kept.scores = scores
        return kept

    with pytest.raises(CaptureError, match=r"returns an object that it keeps.*Make a new object"):
        trained(keep, Answer.loss, captures=True)


def test_an_object_that_holds_itself_is_refused() -> None:
    def make(scores: torch.Tensor) -> Answer:
        made = Answer(scores)
        made.more.append(made)  # type: ignore[arg-type]
        return made

    with pytest.raises(CaptureError, match=r"An? Answer holds tensors.*Use a tuple"):
        trained(make, Answer.loss, captures=True)


@pytest.mark.parametrize("update", ["device", "host"])
def test_a_flag_of_the_model_decides_how_many_results_it_returns(update: str) -> None:
    """The loop reads those that no loss is computed from, while there are any."""

    class Shows(Net):
        shows = True

        def forward(self, x: torch.Tensor) -> Any:
            scores = self.layer(x)
            return (scores, scores.softmax(1), scores.amax(1)) if self.shows else (scores,)

    def found(captures: bool) -> List[float]:
        model, seen = Shows(Answer), []
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5)
        if captures:
            optimizer = ipu_prepare(optimizer, model, config={"update": update})
        for number in range(4):
            model.shows = number % 2 == 0
            optimizer.zero_grad()
            results = model(X)
            loss = F.cross_entropy(results[0], Y)
            loss.backward()
            optimizer.step()
            seen += [loss.item(), *[each.sum().item() for each in results]]
        return seen

    assert found(captures=True) == pytest.approx(found(captures=False), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_a_result_that_forward_converts_for_numpy_is_refused_at_its_line(training: bool) -> None:
    """Where gradients are enabled, a call on the host shows the results first."""

    class Converts(Net):
        def forward(self, x: torch.Tensor) -> Any:
            scores = self.layer(x)
            return scores, [np.asarray(scores.detach().cpu())]

    model = Converts(Answer).train(training)
    optimizer = ipu_prepare(torch.optim.SGD(model.parameters(), lr=0.5), model)
    with pytest.raises(
        CaptureError, match=r"test_results\.py:\d+: Converts\.forward needs the value.*return the tensor"
    ):
        model(X)
    optimizer.zero_grad()
