"""There is a device, and it computes."""

from __future__ import annotations

import torch
from torch import nn

from ignite_ipu.selftest.bench import Bench
from ignite_ipu.selftest.devices import available
from ignite_ipu.selftest.promise import Promises
from ignite_ipu.selftest.reference import agree, batches, expect, network

PROMISES = Promises("device", "first-hour.md")


@PROMISES.promise(ipus=0)
def available_here(bench: Bench) -> None:
    """This process can have an IPU, or the emulator's."""
    expect(available() > 0, "ipuHardwareIsAvailable(1) is False: PopTorch finds no IPU, and no IPU model is selected")


@PROMISES.promise(page="concepts.md")
def computes(bench: Bench) -> None:
    """A compiled model gives the outputs that PyTorch gives."""
    model = network().eval()
    x = torch.cat([x for x, _ in batches()])
    executor = bench.inference_model(model, bench.options())
    agree(executor(x), network().eval()(x), "outputs")


@PROMISES.promise(page="concepts.md")
def layers(bench: Bench) -> None:
    """Convolution, normalisation, pooling and dropout layers give what they give natively."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(4),
        nn.Linear(4, 2),
    ).eval()
    x = torch.randn(4, 3, 8, 8)
    expected = model(x)
    agree(bench.inference_model(model, bench.options())(x), expected, "outputs")
