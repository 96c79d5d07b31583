"""A training step written out by hand: its parts when it is understood, else what stands in the way."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Optional, Tuple

from ignite_ipu.migration.analysis.kinds import Function


@dataclass(frozen=True)
class Plan:
    """What an understood step consists of.

    Attributes:
        replaced: The statements that one call replaces, in order; the call takes the place of the first.
        model: Source of the model.
        optimizer: Source of the optimizer.
        loss: Name that the loss is bound to.
        output: Target that the model's output is bound to; None when it is used in the loss only.
        inputs: The model's positional arguments.
        keywords: The model's keyword arguments.
        loss_function: Called with (output, target); None when `loss_expression` has to become a function first, or
            when the model returns the loss itself.
        target: Second argument of the loss function.
        loss_expression: The loss as it stands.
        per_batch: Names in `loss_expression` that change from batch to batch or from epoch to epoch, without those of
            the output.
        max_grad_norm: Norm that gradients are clipped to.
        own_loss: Whether the model returns the loss itself.
        loss_statements: Assignments that `loss_expression` is computed from, and that nothing else reads.
        function_before: Where the function that `loss_expression` becomes has to stand, to see what it needs.
    """

    replaced: Tuple[ast.stmt, ...]
    model: str
    optimizer: str
    loss: str
    output: Optional[ast.expr]
    inputs: Tuple[ast.expr, ...]
    keywords: Tuple[ast.keyword, ...]
    loss_function: Optional[ast.expr]
    target: Optional[ast.expr]
    loss_expression: ast.expr
    per_batch: Tuple[str, ...]
    max_grad_norm: Optional[ast.expr]
    own_loss: bool = False
    loss_statements: Tuple[ast.stmt, ...] = ()
    function_before: Optional[ast.stmt] = None


@dataclass(frozen=True)
class Step:
    """A call of `backward()` in host code.

    Attributes:
        backward: The call.
        function: The function around it.
        plan: What it is part of, when understood.
        blame: Otherwise the statement that stands in the way,
        reason: and why.
    """

    backward: ast.Call
    function: Optional[Function]
    plan: Optional[Plan]
    blame: ast.AST
    reason: str


class Refused(Exception):
    """A step is not understood.

    Args:
        blame: What stands in the way,
        reason: and why.
    """

    def __init__(self, blame: ast.AST, reason: str) -> None:
        super().__init__(reason)
        self.blame = blame
        self.reason = reason
