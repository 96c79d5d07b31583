"""`torch.optim.swa_utils.update_bn`: forward passes in training mode without gradients, which only the host makes."""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, Callable, Iterator

import torch.optim.swa_utils
from torch import nn

from ignite_ipu.program.forward.eager import natively
from ignite_ipu.running.patches import Substitutes

__all__ = ["substitute_averages"]


def substitute_averages(substitutes: Substitutes) -> None:
    """Let the script compute the batch statistics of an averaged model, which no update does."""
    update_bn: Any = torch.optim.swa_utils.update_bn
    signature = inspect.signature(update_bn)

    def on_the_host(line: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        substitutes.journal.note(line, "update_bn()", "forward passes on the host")
        model = signature.bind(*args, **kwargs).arguments["model"]
        with natively(), _kept_buffers(model):
            return original(*args, **kwargs)

    substitutes.set_everywhere("torch", update_bn, substitutes.of_own_calls(update_bn, on_the_host))


@contextlib.contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """Have the new statistics in the buffers of before, which the device knows: PyTorch 2.0 makes new ones."""
    named = [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]
    before = [getattr(module, name) for module, name in named]
    try:
        yield
    finally:
        for (module, name), buffer in zip(named, before):
            new = getattr(module, name)
            if new is not buffer:
                setattr(module, name, buffer.copy_(new))
