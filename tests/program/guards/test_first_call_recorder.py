"""The operators of a first call, and the tensors that are computed from its inputs."""

from __future__ import annotations

from typing import Callable, List

import pytest
import torch
import torch.nn.functional as F

from ignite_ipu.program.guards.retrace import FirstCallRecorder, Operation, OperatorRecorder

Given = List[torch.Tensor]


def written(x: torch.Tensor, other: torch.Tensor) -> Given:
    torch._foreach_add_([other], [x])  # returns nothing
    return [other, other * 2]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x, weight: [x, weight, x @ weight, weight.exp()], [True, False, True, False]),
        (lambda x, weight: [*torch.max(x, 0), *torch.max(weight, 0)], [True, True, False, False]),
        (lambda x, weight: [torch.cat([weight, x]), torch.ones(2)], [True, False]),
        (lambda x, weight: [weight.copy_(x), weight + 1], [True, True]),
        (written, [True, True]),
        (lambda x, weight: written(x, torch.zeros(3, 3)), [True, True]),
    ],
)
def test_tensors_depend_on_inputs_that_they_are_computed_from(
    call: Callable[[torch.Tensor, torch.Tensor], Given], expected: List[bool]
) -> None:
    x, weight = torch.rand(3, 3), torch.rand(3, 3)
    recorder = FirstCallRecorder()
    recorder.begin([x], [weight])
    with recorder:
        found = call(x, weight)
    assert [recorder.depends(each) for each in found] == expected


def test_draws_for_results_of_inputs_are_undone() -> None:
    torch.manual_seed(0)
    first, second = torch.rand(2), torch.rand(2)
    torch.manual_seed(0)
    recorder = FirstCallRecorder()
    recorder.begin([torch.ones(3)], [])
    x = torch.ones(3)
    recorder.begin([x], [])
    with recorder:
        F.dropout(x, 0.5)
        drawn = torch.rand(2)
        torch.bernoulli(x / 2)
    assert torch.equal(drawn, first)
    assert torch.equal(torch.rand(2), second)


def test_operators_are_those_of_other_recorders() -> None:
    def operators(recorder: OperatorRecorder) -> List[Operation]:
        x, weight = torch.rand(3), torch.rand(3)
        if isinstance(recorder, FirstCallRecorder):
            recorder.begin([x], [weight])
        else:
            recorder.mark([x, weight])
        with recorder:
            (x * weight + torch.arange(3)).sum()
        return recorder.operations

    assert operators(FirstCallRecorder()) == operators(OperatorRecorder())


def test_an_operator_without_a_description_is_like_no_other() -> None:
    def operators() -> List[Operation]:
        recorder = FirstCallRecorder()
        with recorder:
            torch.empty(2, device="meta") + torch.empty(2, device="meta")
            torch.neg(META)
        return recorder.operations

    assert len(operators()) == 4
    assert operators()[:3] == operators()[:3]
    assert operators()[3] != operators()[3]


META = torch.empty(2, device="meta")
