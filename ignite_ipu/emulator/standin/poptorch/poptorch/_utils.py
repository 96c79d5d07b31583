"""Names that published programs use of PopTorch's private module of that name."""

from __future__ import annotations

from ignite_ipu.emulator.data.loader import combine_batch_tensors_gen

__all__ = ["combine_batch_tensors_gen"]
