"""A transformer in half precision over a pipeline, with the back-end settings that published ones have."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ignite_ipu.emulator import install

WORDS, WIDTH, HEADS, LENGTH, UPDATES = 30, 32, 4, 8, 20


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.first, self.second = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        split = (batch, length, HEADS, WIDTH // HEADS)
        query, key, value = (each(x).view(split).transpose(1, 2) for each in (self.query, self.key, self.value))
        scores = torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(WIDTH // HEADS), -1)
        mixed = (scores @ value).transpose(1, 2).reshape(batch, length, WIDTH)
        x = self.before(x + self.out(mixed))
        return self.after(x + self.second(torch.nn.functional.gelu(self.first(x), approximate="tanh")))


class Bert(nn.Module):
    """Predicts the masked words."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words, labels):
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x).float()
        return nn.functional.cross_entropy(logits.view(-1, WORDS), labels.view(-1), ignore_index=-100)


def batches():
    generator = torch.Generator().manual_seed(2)
    for _ in range(UPDATES):
        words = torch.randint(1, WORDS, (16, LENGTH), generator=generator)
        hidden = torch.rand(words.shape, generator=generator) < 0.3
        yield torch.where(hidden, 0, words), torch.where(hidden, words.roll(1, 1), -100)


def in_float32():
    model = Bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    losses = []
    for words, labels in batches():
        optimizer.zero_grad()
        # The mean over micro-batches of their means.
        parts = [model(*each) for each in zip(words.chunk(4), labels.chunk(4))]
        sum(parts).div(4).backward()
        optimizer.step()
        losses.append(sum(parts).item() / 4)
    return losses


@pytest.mark.parametrize("stochastic", [False, True])
def test_it_follows_training_in_float32(stochastic):
    """The loss of each update stays within a few roundings of plain PyTorch's."""
    with install():
        import popart
        import poptorch

        options = poptorch.Options().showCompilationProgressBar(False).randomSeed(1)
        options.Training.gradientAccumulation(4)
        options.Precision.setPartialsType(torch.half)
        options.Precision.enableStochasticRounding(stochastic)
        options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
        options.outputMode(poptorch.OutputMode.All)
        options._Popart.set("disableGradAccumulationTensorStreams", True)
        options._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
        options._Popart.set("scheduleNonWeightUpdateGradientConsumersEarly", True)
        options._Popart.setPatterns({"TiedGather": True, "UpdateInplacePrioritiesForIpu": True})
        schedule = popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized
        options._Popart.set("accumulateOuterFragmentSettings.schedule", int(schedule))
        options._Popart.set("outlineThreshold", 10.0)
        model = Bert().half()
        model.embedding = poptorch.BeginBlock(model.embedding, "embedding", ipu_id=0)
        model.layers[1] = poptorch.BeginBlock(model.layers[1], "second", ipu_id=1)
        optimizer = poptorch.optim.AdamW(
            model.parameters(),
            lr=3e-3,
            weight_decay=0.01,
            loss_scaling=128.0,
            accum_type=torch.float16,
            first_order_momentum_accum_type=torch.float16,
            second_order_momentum_accum_type=torch.float32,
        )
        training = poptorch.trainingModel(model, options, optimizer)
        losses = [training(*batch).mean().item() for batch in batches()]
        assert model.head.weight.dtype is torch.float16
        training.destroy()
    plain = in_float32()
    assert losses == pytest.approx(plain, rel=0.03)
    assert losses[-1] < 0.95 * losses[0]
