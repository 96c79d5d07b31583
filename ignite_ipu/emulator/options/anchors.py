"""The tensors that a model returns besides its outputs."""

from __future__ import annotations

from typing import NamedTuple

from ignite_ipu.emulator.enums import OutputMode


class Anchor(NamedTuple):
    """One tensor that `anchorTensor` asked for.

    Attributes:
        name: Its full name.
        unspecified: Whether no mode was given, so that the model's holds.
        mode: What of it comes back.
        period: Every how many device iterations, for `EveryN`; else 1.
    """

    name: str
    unspecified: bool
    mode: OutputMode
    period: int

    def following(self, model_mode: OutputMode, model_period: int) -> Anchor:
        """Return the anchor with the model's mode and period where it has none of its own."""
        if not self.unspecified:
            return self
        return self._replace(mode=model_mode, period=model_period if model_mode is OutputMode.EveryN else 1)
