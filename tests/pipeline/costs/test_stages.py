"""The memory model's spans against sums over layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ignite_ipu.pipeline import Strategy, measure
from ignite_ipu.pipeline.costs.stages import MemoryModel, optimizer_state


class Reused(nn.Module):
    """Layer 1's result is saved by layer 3 as well, which multiplies by it."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Sigmoid() for _ in range(4))

    def forward(self, x):
        first = self.parts[0](x)
        second = self.parts[1](first)
        third = self.parts[2](second)
        return self.parts[3](third) * second * first


@pytest.mark.parametrize("recompute", [False, True])
def test_every_span_by_counting_tensors(recompute):
    """A stage keeps the values that its layers save and compute, and its inputs, per micro-batch in flight."""
    profile = measure(Reused(), torch.randn(3, 5))
    memory = MemoryModel(profile, optimizer_state("sgd"), Strategy(recompute=recompute))
    stages = 4
    for stage in range(stages):
        for begin in range(4):
            for end in range(begin + 1, 5):
                inside = profile.layers[begin:end]
                own = sum(t.bytes for layer in inside for t in layer.saved if t.producer >= begin)
                entering = sum(c.bytes for c in profile.crossings if c.producer < begin <= c.consumer)
                flight = 2 * (stages - stage)
                if recompute:
                    entering = entering if begin else profile.input_bytes
                    expected = flight * entering + own
                else:
                    expected = flight * (own + entering)
                assert memory.stage(begin, end, stage, stages).activations == expected
                assert memory.totals(stages, (begin, end))(stage, ...) == memory.stage(begin, end, stage, stages).total


def test_biggest_tensors_are_the_largest_first():
    profile = measure(nn.Sequential(nn.Linear(4, 100), nn.Linear(100, 4)), torch.randn(2, 4))
    memory = MemoryModel(profile, optimizer_state("sgd"), Strategy())
    biggest = memory.biggest(0, 2, 0, 2, count=2)
    assert [t.name for t in biggest] == ["1: addmm (2, 100) x 4 micro-batches", "0.weight"]
    assert [t.bytes for t in biggest] == [4 * 800, 1600]
