"""There is a device, and it computes."""

from __future__ import annotations

import torch

from ignite_ipu.selftest.bench import Bench, agree, batches, expect, network
from ignite_ipu.selftest.promises import available, needs

PAGE = "first-hour.md"


@needs(ipus=0)
def available_here(bench: Bench) -> None:
    """This process can have an IPU, or the emulator's."""
    expect(available() > 0, "ipuHardwareIsAvailable(1) is False: PopTorch finds no IPU, and no IPU model is selected")


@needs(page="concepts.md")
def computes(bench: Bench) -> None:
    """A compiled model gives the outputs that PyTorch gives."""
    x = torch.cat([x for x, _ in batches()])
    agree(bench.inference_model(network().eval())(x), network().eval()(x), "outputs")
