"""The one call of a captured model on the host that tells what its calls return and write."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

import torch
from torch import nn

from ignite_ipu.deferred.errors import CaptureError
from ignite_ipu.deferred.lines import current_line
from ignite_ipu.deferred.step import natively
from ignite_ipu.python_state import changed_by, changes_in_every_call
from ignite_ipu.tracing import without_generation_cache

__all__ = ["HostCall", "called_on_host"]


class HostCall(NamedTuple):
    """What a call gave.

    Attributes:
        output: What it returned.
        writes: The names of the buffers that it wrote into.
    """

    output: Any
    writes: List[str]


def called_on_host(model: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], name: str) -> HostCall:
    """Call a model on the host, without a trace in its weights, its buffers or randomness.

    Raises:
        CaptureError: Its code changes Python values in every call; the message calls the model `name`.
    """
    before = {path: torch.Tensor.detach(buffer).clone() for path, buffer in model.named_buffers()}
    buffers: Dict[str, torch.Tensor] = {}

    def call() -> Any:
        buffers.update({path: buffer.clone() for path, buffer in before.items()})
        return torch.func.functional_call(model, dict(buffers), args, kwargs)

    with natively(), without_generation_cache(model), torch.random.fork_rng(devices=[]), torch.no_grad():
        output, changed = changed_by(model, call)
        if changed:
            # What the first call set up, such as a cache, stays as it is in the second.
            _, changed = changed_by(model, call)
    if changed:
        raise CaptureError(changes_in_every_call(f"The forward of {name}, called at {current_line()},", changed))
    return HostCall(output, [path for path, buffer in buffers.items() if _was_written(buffer, before[path])])


def _was_written(buffer: torch.Tensor, before: torch.Tensor) -> bool:
    # PyTorch counts the writes to a tensor, but not those of batch normalisation to its statistics.
    return bool(buffer._version) or not torch.allclose(buffer, before, rtol=0, atol=0, equal_nan=True)
