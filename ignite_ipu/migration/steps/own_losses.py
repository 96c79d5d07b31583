"""Losses that a model returns itself: `outputs = model(**batch); loss = outputs.loss`, and the like."""

from __future__ import annotations

import ast
from typing import Optional

from ignite_ipu.migration.analysis.names import constant


def read_from(loss: ast.expr) -> Optional[ast.expr]:
    """Return what a loss is read from: `outputs` of `outputs.loss`, `outputs["loss"]`, `outputs[0]`, `outputs[-1]`.

    None for any other expression. These are the places in which `ignite_ipu.program.training_step.find_loss` finds it.
    """
    if isinstance(loss, ast.Attribute) and loss.attr == "loss":
        return loss.value
    if isinstance(loss, ast.Subscript):
        # Python 3.8 wraps an index in ast.Index.
        index = getattr(loss.slice, "value", loss.slice) if type(loss.slice).__name__ == "Index" else loss.slice
        if constant(index) in ("loss", 0, -1):
            return loss.value
    return None


def is_bound_beside(target: ast.expr, loss: str) -> bool:
    """Whether a tuple of targets binds a loss first or last, as in `logits, loss = model(x, y)`."""
    names = [getattr(name, "id", None) for name in target.elts] if isinstance(target, ast.Tuple) else []
    return len(names) > 1 and all(names) and loss in (names[0], names[-1]) and names.count(loss) == 1
