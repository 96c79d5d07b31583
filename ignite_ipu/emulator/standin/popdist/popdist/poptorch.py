"""PopDist's options for PopTorch programs."""

from __future__ import annotations

from ignite_ipu.emulator.popdist.options import Options

__all__ = ["Options"]
