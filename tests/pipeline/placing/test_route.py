"""A route has a stage for each visit of an IPU, in the order in which a program runs."""

from __future__ import annotations

from typing import Any, Callable, List

import pytest
import torch
from torch import nn

from ignite_ipu.pipeline import Placement, PlanError
from ignite_ipu.pipeline.placing.route import Route

X = torch.ones(2, 4)


def route_of(model: nn.Module, pipeline: Any, run: Callable[[Route], Any], called: Any = ("",), **kind: Any) -> Route:
    route = Route(Placement.of(model, pipeline, **kind), model, called)

    def begun() -> None:
        route.begin()
        run(route)

    route.explore(model, begun)
    return route


def chain(layers: int = 4) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])


class Short(nn.Sequential):
    """Runs the first layer alone."""

    def forward(self, x: torch.Tensor) -> Any:
        return self[0](x)


def test_a_second_call_visits_all_ipus_again():
    model = chain()
    assert route_of(model, [2, 2], lambda route: model(X)).ipus == (0, 1)
    route = route_of(model, [2, 2], lambda route: (model(X), model(X)))
    assert route.ipus == (0, 1, 0, 1) and route.stages == 4


def test_weights_are_read_on_their_ipu():
    """Of weights on several IPUs the last one's IPU computes."""
    model = chain()
    weights = dict(model.named_parameters())

    def run(route: Route, *names: str) -> None:
        model(X)
        route.gather({name: weights[name] for name in names})

    assert route_of(model, [2, 2], lambda route: run(route, "3.weight")).ipus == (0, 1)
    assert route_of(model, [2, 2], lambda route: run(route, "0.weight")).ipus == (0, 1, 0)
    assert route_of(model, [2, 2], lambda route: run(route, "0.weight", "2.bias")).ipus == (0, 1, 0, 1)


def test_modules_without_stages_stay_on_the_ipu_of_their_first_call():
    both = nn.ModuleDict({"first": chain(2), "second": chain(1)})

    def run(route: Route) -> None:
        both["second"](both["first"](X))
        both["second"](both["first"](X))

    route = route_of(both, [("first.0", 0), ("first.1", 1)], run, ("first", "second"))
    assert route.ipus == (0, 1, 0, 1)


def test_phases_follow_each_other():
    model = chain(3)
    calls: List[Any] = ["0", "1", "2"]
    for execution, ipus in (("serial phased", (0, 0, 0, 0, 0, 0)), ("parallel phased", (0, 1, 0, 1, 0, 1))):
        route = route_of(model, calls, lambda route: (model(X), model(X)), execution=execution)
        assert route.ipus == ipus


def test_what_cannot_be_placed_is_refused():
    model = chain(3)
    with pytest.raises(PlanError, match="Layer '0' runs before layer '1', but the placement lists it after"):
        route_of(model, [("1", 0), ("0", 1)], lambda route: model(X))
    tied = chain(3)
    tied[2].weight = tied[0].weight
    with pytest.raises(PlanError, match=r"Weight 0.weight is used by 0 on IPU 0 and by 2 on IPU 1"):
        route_of(tied, Placement([*Placement.of(model, ["0", "1"]).starts]), lambda route: tied(X))
    short = Short(*chain(2))
    with pytest.raises(PlanError, match="never reached these layers of the placement: 1"):
        route_of(short, ["0", "1"], lambda route: short(X))


def test_what_weights_alone_give_is_computed_before_the_program_leaves_their_ipu():
    """Not where gradients are off in between, as for a frozen part of a model."""
    model, found = chain(), []
    route = Route(Placement.of(model, [2, 2]), model, ("",))

    def leaving() -> None:
        found.append([name for name, _ in model.named_parameters() if route.is_here([name])])

    def run() -> None:
        route.begin(leaving)
        model(X)

    route.explore(model, run)
    assert found[-1] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    found.clear()

    def without_gradients() -> None:
        route.begin(leaving)
        with torch.no_grad():
            model(X)

    route.explore(model, without_gradients)
    assert found == []
