"""`torch.optim.swa_utils.update_bn`: forward passes in training mode without gradients, which only the host makes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from typing import Any, Callable, Iterator

import torch.optim.swa_utils
from torch import nn

from ignite_ipu.program.forward.eager import natively
from ignite_ipu.running.journal import Journal
from ignite_ipu.running.ownership import ScriptCode
from ignite_ipu.running.patches import Patches

__all__ = ["substitute_averages"]


def substitute_averages(patches: Patches, code: ScriptCode, journal: Journal) -> None:
    """Let the script compute the batch statistics of an averaged model, which no update does."""
    owner: Any = torch.optim.swa_utils
    patches.set_everywhere("torch", owner.update_bn, _on_the_host(owner.update_bn, code, journal))


def _on_the_host(original: Callable[..., Any], code: ScriptCode, journal: Journal) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def update_bn(*args: Any, **kwargs: Any) -> Any:
        line = code.line_of(sys._getframe(1))
        if line is None:
            return original(*args, **kwargs)
        journal.note(line, "update_bn()", "forward passes on the host")
        model = signature.bind(*args, **kwargs).arguments["model"]
        with natively(), _kept_buffers(model):
            return original(*args, **kwargs)

    return update_bn


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
