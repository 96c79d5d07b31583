"""The device's random numbers where only some calls draw them: the host's are left alone all the same."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List

import pytest
import torch

import ignite_ipu.emulator as poptorch
from tests.emulator.calls import Calls

X = torch.zeros(4)


def drawn(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(4)


def chosen(draw: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Draw where `draw` is set, by a branch on the device."""
    return poptorch.cond(draw, drawn, [x], lambda x: x + 1, [x])[0]


def looped(draw: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return poptorch.for_loop(1, lambda x: chosen(draw, x), [x])[0]


def on_host(draw: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return poptorch.CPU(lambda draw, x: drawn(x) if draw.item() else x, "draws")(draw, x)


def custom(draw: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return poptorch.custom_op([draw, x], "Draws", "test", 1, [x])[0]


@pytest.fixture
def stand_in() -> Iterator[None]:
    @poptorch.register_custom_op("Draws", "test")
    def draws(draw: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return drawn(x) if draw.item() else x

    yield
    poptorch.unregister_custom_op("Draws", "test")


@pytest.mark.parametrize("function", [chosen, looped, on_host, custom])
def test_a_program_that_draws_in_a_later_call_alone_draws_from_its_own_stream(
    function: Callable[..., Any], stand_in: None
) -> None:
    found: List[torch.Tensor] = []
    for hosts_seed in (0, 5):
        executor = poptorch.inferenceModel(Calls(function), poptorch.Options().randomSeed(1))
        executor(torch.tensor([False]), X)
        torch.manual_seed(hosts_seed)
        host = torch.random.get_rng_state()
        found.append(executor(torch.tensor([True]), X))
        assert torch.equal(torch.random.get_rng_state(), host)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(1))
    assert all(torch.equal(value, expected) for value in found)
