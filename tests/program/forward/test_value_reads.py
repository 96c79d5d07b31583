"""Reads of data by the code of a forward are found in a call on the host."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ignite_ipu.deferred.compiled.host_calls import ForwardGuard
from ignite_ipu.errors import ForwardError
from ignite_ipu.program.forward.value_reads import ValueReads
from ignite_ipu.program.guards.retrace import OperatorRecorder

CONSTANT = torch.tensor([1.0, 2.0])


def called(forward: Any) -> None:
    x = torch.tensor([1.0, 3.0])
    recorder = OperatorRecorder()
    recorder.mark([x])
    recorder.mark_data([x])
    reads = ValueReads(recorder)
    recorder.before_index = reads.check_index
    with ForwardGuard(reads=reads), recorder:
        forward(x)


@pytest.mark.parametrize(
    ("forward", "what"),
    [
        (lambda x: x.max().item(), "needs the value of a tensor"),
        (lambda x: (x * 2).tolist(), "needs the value of a tensor"),
        (lambda x: -x if x.sum() > 0 else x, "needs the value of a tensor"),
        (lambda x: (CONSTANT + x.mean()).numpy(), "needs the value of a tensor"),
        (lambda x: int(torch.zeros(2).add_(x)[0]), "needs the value of a tensor"),
        (lambda x: float(torch.rand(())), "needs the value of a tensor"),
        (lambda x: x[x > 2], "size depends on values"),
        (lambda x: torch.where(x > 2)[0], "size depends on values"),
        (lambda x: x.nonzero(), "size depends on values"),
        (lambda x: torch.unique(x), "size depends on values"),
    ],
)
def test_a_read_of_data_is_refused(forward: Any, what: str) -> None:
    with pytest.raises(ForwardError, match=what):
        called(forward)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: CONSTANT.max().item(),
        lambda x: torch.zeros_like(x).sum().item(),
        lambda x: x[torch.arange(2) > 0],
        lambda x: x.reshape(int(torch.tensor(x.shape).prod())),
        lambda x: torch.where(x > 2, x, -x),
    ],
)
def test_other_values_may_be_read(forward: Any) -> None:
    called(forward)
