"""Whether PopTorch clips what `torch.nn.utils.clip_grad_norm_` clips."""

from __future__ import annotations

from typing import Collection, Optional

import torch

__all__ = ["clipping_problem"]


def clipping_problem(optimizer: torch.optim.Optimizer, variable: Collection[str] = ()) -> Optional[str]:
    """Return why an IPU would not clip the gradients of an optimizer's parameters; None when it would.

    SGD clips what its weight update consumes: with momentum the velocity, which also has the weight decay in it, and
    without momentum the gradient, to which the decay comes afterwards.

    Args:
        optimizer: The user's optimizer.
        variable: Hyper-parameters that may change.
    """
    if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return None
    kind = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.SGD):
        return f"{kind} cannot clip gradients on an IPU. Use Adam, AdamW, or SGD without momentum."
    momenta = [group["momentum"] for group in optimizer.param_groups]
    if not any(momenta) and "momentum" not in variable:
        return None
    return (
        f"with momentum={max(momenta)!r} an IPU's {kind} clips the velocity, not the gradients as "
        f"clip_grad_norm_ does. Use Adam, AdamW, or {kind} whose momentum is 0 and constant; or, if that is what you "
        f"want, poptorch.optim.{kind}(..., max_grad_norm=...)."
    )
