"""There is a device, and it computes."""

from __future__ import annotations

import torch

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
