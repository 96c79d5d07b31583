"""Values that the backward pass needs and that forward writes over: the device's compiler keeps both.

Autograd refuses to go backward through such a model. Whether it does follows from the operators alone, so the first
micro-batch decides; only a model for which it matters pays for copies of autograd's saved tensors.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, List, Optional, Sequence, Tuple

import torch

from ignite_ipu.emulator.compiler.graph import Graph

Tensors = Sequence[torch.Tensor]
Results = Tuple[torch.Tensor, ...]


def copied() -> ContextManager[Any]:
    """Context in which autograd saves copies of forward's results, which no operation can overwrite."""
    return torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda value: value)


def were_overwritten(error: Exception) -> bool:
    """Return whether this is autograd's error about saved values that an operator wrote over."""
    return "modified by an inplace operation" in str(error)


class SavedValues:
    """Goes forward and backward through one graph, with copies of saved tensors where they are needed."""

    def __init__(self, graph: Graph) -> None:
        nodes = graph.nodes.nodes
        self._written = graph.written
        # Whether copies are needed; None before a run.
        self._copies: Optional[bool] = None
        if not any(node.meta.get("writes") for node in nodes):
            self._copies = False
        elif any(getattr(node.target, "runs_every_time", False) for node in nodes):
            self._copies = True  # operations on the host must not run twice for this test

    def run(self, forward: Callable[..., Results], arguments: Tensors, backward: Callable[[Results], None]) -> Results:
        """Run `forward` on the arguments and `backward` on its result, and return the result."""
        restore = _restorer([arguments[place] for place in self._written]) if self._copies is None else None
        try:
            with copied() if self._copies else contextlib.nullcontext():
                results = forward(*arguments)
            backward(results)
        except RuntimeError as error:
            if restore is None or not were_overwritten(error):
                raise
        else:
            self._copies = bool(self._copies)
            return results
        restore()
        self._copies = True
        return self.run(forward, arguments, backward)


def _restorer(written: Tensors) -> Callable[[], None]:
    """Return a function that restores the current values of written arguments and of the random stream."""
    random = torch.random.get_rng_state()
    before: List[torch.Tensor] = [value.detach().clone() for value in written]

    def restore() -> None:
        torch.random.set_rng_state(random)
        with torch.no_grad():
            for value, old in zip(written, before):
                if value.requires_grad and not value.is_leaf:
                    value.detach_()
                value.copy_(old)

    return restore
