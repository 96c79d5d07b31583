"""`EMA`: an exponential moving average of the weights that does not download them in every iteration."""

from __future__ import annotations

import copy
from typing import Any, Mapping, Optional

import torch
from ignite.engine import Engine, Events
from torch import nn

__all__ = ["EMA"]


class EMA:
    """Keeps the exponential moving average of a model's weights, read once in several device calls.

    Ignite's `EMAHandler` works on an IPU, but reads the weights after every iteration, which is one download each. This
    one reads them every `every` iterations, and decays for all the weight updates in between at once. With momentum m
    per update and n updates since the last read, the average keeps (1 - m)**n of itself. The rest comes from the
    current weights. So it forgets at the right pace, and is ahead of the average over every update by at most one
    read::

        ema = EMA(model, momentum=0.0002, every=50)
        ema.attach(trainer)
        evaluator = create_ipu_evaluator(ema.model, metrics)

    Args:
        momentum: Share of the new weights in the average, per weight update; between 0 and 1.
        every: Iterations, which are device calls, between two reads.

    Attributes:
        model: The averaged copy, an ordinary model in evaluation mode. Buffers are copied, not averaged.

    Raises:
        ValueError: `momentum` or `every` is out of range.
    """

    def __init__(self, model: nn.Module, momentum: float = 0.0002, every: int = 1) -> None:
        if not 0 < momentum < 1:
            raise ValueError(f"momentum must be between 0 and 1, got {momentum!r}.")
        if every < 1 or every != int(every):
            raise ValueError(f"every must be a positive number of iterations, got {every!r}.")
        self.momentum = momentum
        self.every = every
        self._source = model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._updates_seen: Optional[int] = None

    def attach(self, engine: Engine) -> None:
        """Follow this trainer; the average is complete at the end of each epoch and run.

        The engine counts weight updates in `state.weight_updates`, as the trainers of this library and those with a
        `Counts` handler do; without that each iteration counts as one.
        """
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(
            Events.ITERATION_COMPLETED(every=self.every) | Events.EPOCH_COMPLETED | Events.COMPLETED, self.update
        )

    @torch.no_grad()
    def update(self, engine: Engine) -> None:
        """Look at the weights now."""
        count = _updates(engine)
        passed = count - (self._updates_seen or 0)
        if passed <= 0:
            return
        self._updates_seen = count
        kept = (1.0 - self.momentum) ** passed
        # Tied weights have one name in the average, which may be any of theirs in the model.
        newest = dict(self._source.named_parameters(remove_duplicate=False))
        for name, average in self.model.named_parameters():
            if average.is_floating_point() or average.is_complex():
                average.mul_(kept).add_(newest[name], alpha=1.0 - kept)
            else:
                average.copy_(newest[name])
        buffers = dict(self._source.named_buffers(remove_duplicate=False))
        for name, buffer in self.model.named_buffers():
            newer = buffers.get(name)  # some models drop those that they compute anew, or make them of another shape
            if newer is not None and newer.shape == buffer.shape:
                buffer.copy_(newer)
            elif newer is not None:
                buffer.data = newer.detach().clone()

    def state_dict(self) -> Mapping[str, Any]:
        """Return the average and how many weight updates it has seen."""
        return {"model": self.model.state_dict(), "updates_seen": self._updates_seen or 0}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with an average that was saved."""
        self.model.load_state_dict(state_dict["model"])
        self._updates_seen = int(state_dict["updates_seen"])

    def _start(self, engine: Engine) -> None:
        if engine.state.iteration == 0 or self._updates_seen is None:
            self._updates_seen = _updates(engine)


def _updates(engine: Engine) -> int:
    # Ignite gives the state of every engine the attributes that one of them has registered: 0 means that no handler
    # counts.
    return int(getattr(engine.state, "weight_updates", 0) or engine.state.iteration)
