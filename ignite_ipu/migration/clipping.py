"""Whether PopTorch clips what `clip_grad_norm_` clips."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Optional

from ignite_ipu.migration.names import argument, constant

if TYPE_CHECKING:
    from ignite_ipu.migration.program import Program


def clipping_obstacle(program: Program, optimizer: str) -> Optional[str]:
    """Return why PopTorch would not clip the gradients of an optimizer's parameters; None when it would."""
    known = program.training.optimizers.get(optimizer)
    if known is None:
        return f"the gradients are clipped, and the file does not show what {optimizer} is"
    call, kind = known
    if kind in ("torch.optim.Adam", "torch.optim.AdamW"):
        return None
    if kind != "torch.optim.SGD":
        return f"{kind} cannot clip gradients on an IPU"
    momentum = argument(call, "momentum", 2)
    if momentum is not None and constant(momentum) != 0:
        return "with momentum, PopTorch's SGD clips the velocity, not the gradients"
    groups = any(isinstance(part, (ast.Dict, ast.Starred)) for part in ast.walk(call))
    unclear = groups or any(keyword.arg is None for keyword in call.keywords)
    return "the gradients are clipped, and not all values of the optimizer are in sight" if unclear else None
