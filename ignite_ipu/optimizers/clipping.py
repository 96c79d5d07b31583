"""Whether PopTorch clips what `torch.nn.utils.clip_grad_norm_` clips."""

from __future__ import annotations

from typing import Optional

import torch

__all__ = ["clipping_problem"]


def clipping_problem(optimizer: torch.optim.Optimizer) -> Optional[str]:
    """Return why an IPU would not clip the gradients of an optimizer's parameters; None when it would."""
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return None
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.SGD):
        return f"{kind} cannot clip gradients on an IPU. Use Adam, AdamW or plain SGD."
    for group in optimizer.param_groups:
        for name in ("momentum", "weight_decay"):
            if group[name]:
                return (
                    f"with {name}={group[name]!r} an IPU's {kind} clips what the weights are updated with, not the "
                    "gradients. Use Adam or AdamW, or create_ipu_trainer if that is what you want."
                )
    return None
