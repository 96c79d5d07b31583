"""Embeddings with a padding index: the row is not trained, which PopTorch does not read."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.nn.functional as F

from ignite_ipu.function_contexts import FunctionContext

__all__ = ["UntrainedPadding"]


class UntrainedPadding(FunctionContext):
    """Context in which `F.embedding` passes no gradient to the row of its `padding_idx`, in a trace as natively."""

    def call(self, func: Callable[..., Any], args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Return what the function returns, an embedding's rows as they are trained."""
        if func is F.embedding:
            return _embedding(*args, **kwargs)
        return func(*args, **kwargs)


def _embedding(input: Any, weight: Any, padding_idx: Optional[int] = None, *args: Any, **kwargs: Any) -> Any:
    rows = F.embedding(input, weight, None, *args, **kwargs)
    if padding_idx is None:
        return rows
    row = padding_idx if padding_idx >= 0 else weight.size(0) + padding_idx
    return torch.where((input == row).unsqueeze(-1), rows.detach(), rows)
