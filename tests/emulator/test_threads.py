"""Threads that compile and run programs at the same time leave PyTorch, and each other, as they would be alone."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Tuple

import torch
from torch import nn

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls

X = torch.ones(2, 3)


class Doubled(torch.autograd.Function):
    """Its own backward gives ten times the gradient, so that it cannot be confused with another."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 10


def own_backward_runs() -> bool:
    x = torch.ones((), requires_grad=True)
    y = Doubled.apply(x)  # type: ignore[no-untyped-call]
    return bool(y.requires_grad and torch.autograd.grad(y, x)[0] == 10)


def replaced_by_traces() -> Tuple[Any, ...]:
    apply, validate = torch.autograd.Function.__dict__["apply"], torch.distributions.Distribution._validate_args
    return apply, validate, torch.range


def compiled(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    executor = poptorch.inferenceModel(Calls(function))
    executor.compile(X)
    return executor


def test_traces_that_overlap_leave_pytorch_as_it_was() -> None:
    """The first trace ends while the second, which began within it, goes on."""
    before = replaced_by_traces()
    began, ended = threading.Event(), threading.Event()

    def second(x: torch.Tensor) -> torch.Tensor:
        ended.wait(60)
        return x + 1

    thread = threading.Thread(target=lambda: compiled(second))

    def first(x: torch.Tensor) -> torch.Tensor:
        thread.start()
        began.wait(0.3)  # time for the second to reach its wait
        return x + 2

    compiled(first)
    ended.set()
    thread.join(60)
    assert replaced_by_traces() == before
    assert own_backward_runs()


def test_a_trace_is_none_of_another_threads_business() -> None:
    """Autograd functions keep their backward in a thread that does not trace."""
    tracing, looked = threading.Event(), threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        tracing.set()
        looked.wait(60)
        return x + 1

    thread = threading.Thread(target=lambda: compiled(slow))
    thread.start()
    try:
        tracing.wait(60)
        assert own_backward_runs()
    finally:
        looked.set()
        thread.join(60)


def test_random_streams_do_not_mix() -> None:
    """Each of four programs draws the same numbers as alone, and the host's generator has not moved."""

    def draw(seed: int) -> Any:
        return poptorch.inferenceModel(Calls(nn.functional.dropout), poptorch.Options().randomSeed(seed))

    def drawn(executor: Any) -> List[torch.Tensor]:
        return [executor(torch.ones(64, 64)) for _ in range(5)]

    seeds = range(4)
    expected = [drawn(draw(seed)) for seed in seeds]
    found: List[Any] = [None] * len(seeds)
    executors = [draw(seed) for seed in seeds]
    host = torch.random.get_rng_state()
    barrier = threading.Barrier(len(seeds))

    def work(index: int) -> None:
        barrier.wait(60)
        found[index] = drawn(executors[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert torch.equal(torch.random.get_rng_state(), host)
    for mine, others in zip(found, expected):
        assert all(map(torch.equal, mine, others))
