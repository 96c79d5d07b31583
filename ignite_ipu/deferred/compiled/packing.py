"""Packed sequences, whose shapes depend on lengths, as a compiled program's may not."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch

from ignite_ipu.errors import CaptureError
from ignite_ipu.program.function_mode import FunctionGuard
from ignite_ipu.program.user_code import current_line

__all__ = ["PackingGuard"]

_PACK = torch._VF._pack_padded_sequence


class PackingGuard(FunctionGuard):
    """Refuses `pack_padded_sequence` in its `with` block, where a model is called for a look or traced."""

    def check(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        """Refuse to pack sequences."""
        if func is _PACK:
            raise CaptureError(
                f"pack_padded_sequence at {current_line()} makes a tensor whose shape depends on the lengths, and a "
                "compiled program has fixed shapes. Leave out the packing, which computes the same up to each "
                "sequence's end, and take what is wanted from there: output[torch.arange(n), lengths - 1] is the last "
                "output, and a mask of the lengths leaves the padding out of sums. (The backward direction of a "
                "bidirectional layer sees the padding first.)"
            )
