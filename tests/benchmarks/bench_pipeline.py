"""How long planning and simulating take."""

from __future__ import annotations

from typing import Iterator, Tuple

import torch
from torch import nn

from ignite_ipu.pipeline import Comparison, Profile, Schedule, StageTime, compare, measure, simulate
from tests.benchmarks.measures import Measure, best_of, exponent

SLOTS = 10**6


class Transformer(nn.Module):
    """Only shapes count here, and measuring propagates only shapes: the weights are never filled."""

    def __init__(self, layers: int = 96, width: int = 1024, tokens: int = 20_000):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def shapes(layers: int) -> Tuple[nn.Module, torch.Tensor]:
    """Return a model and its input without values."""
    with torch.device("meta"):
        return Transformer(layers), torch.zeros(1, 128, dtype=torch.long)


def measured(layers: int = 96) -> Profile:
    return measure(*shapes(layers))


def propagated(layers: int) -> None:
    model, tokens = shapes(layers)
    model(tokens).sum().backward()


def planned(profile: Profile) -> Comparison:
    return compare(profile, 16)


def simulated(stages: int, keep: bool) -> Schedule:
    """10^6 slots: forward and backward passes on stages so nearly equal that the steady state stays out of reach."""
    times = [StageTime(1.0 + 1e-6 * (stages - stage), 2.0) for stage in range(stages)]
    return simulate(times, SLOTS // (2 * stages), slots=keep)


def test_planning_96_layers_over_16_ipus_takes_under_two_seconds():
    """Measuring included."""
    assert len(measured().layers) == 98
    assert best_of(2, lambda: planned(measured())) < 2


def test_simulating_a_million_slots_takes_under_two_seconds():
    for stages in (2, 16):
        for keep in (False, True):
            assert best_of(2, lambda stages=stages, keep=keep: simulated(stages, keep)) < 2


def measures() -> Iterator[Measure]:
    """Yield the row of the table, whose limit is the growth of one pass over the model that propagates shapes."""
    sizes = (100, 300, 1000)
    planned(measured(10))  # imports, and other work that is done once
    taken = [best_of(1, lambda size=size: compare(measured(size), 64)) for size in sizes]  # type: ignore[misc]
    passes = [best_of(1, lambda size=size: propagated(size)) for size in sizes[:2]]  # type: ignore[misc]
    both = " / ".join(f"{1e3 * value:.3g}" for value in taken)
    yield Measure(
        "growth of a plan, 100, 300, 1000 layers",
        exponent(sizes, taken),
        1,
        "",
        f"{both} ms",
        exponent(sizes[:2], passes),
    )


def more() -> Iterator[Measure]:
    """Yield further rows."""
    yield Measure("plan 1,000 layers over 64 IPUs", best_of(1, lambda: compare(measured(1000), 64)), 20, "s")
    yield Measure("plan 96 layers over 16 IPUs, measuring included", best_of(2, lambda: planned(measured())), 2, "s")
    for stages in (2, 4, 16):
        taken = best_of(3, lambda stages=stages: simulated(stages, True))  # type: ignore[misc]
        yield Measure(f"simulate 10^6 slots on {stages} stages", taken, 2, "s")
