"""Names that published programs use of PopTorch's private module of that name."""

from __future__ import annotations

from ignite_ipu.emulator.values.wrapping import rewrapModelIfNecessary, unwrapModelIfNecessary

__all__ = ["rewrapModelIfNecessary", "unwrapModelIfNecessary"]
