"""Names that published programs use of PopTorch's private module of that name."""

from __future__ import annotations

from ignite_ipu.emulator.values.arguments import ArgsParser

__all__ = ["ArgsParser"]
