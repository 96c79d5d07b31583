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
    for position, name in ((2, "momentum"), (4, "weight_decay")):
        value = argument(call, name, position)
        if value is not None and constant(value) != 0:
            return f"with {name}, PopTorch's SGD clips what the weights are updated with, not the gradients"
    groups = any(isinstance(part, (ast.Dict, ast.Starred)) for part in ast.walk(call))
    unclear = groups or any(keyword.arg is None for keyword in call.keywords)
    return "the gradients are clipped, and not all values of the optimizer are in sight" if unclear else None
