"""A subclass of torch.autograd.Function with a backward of its own, in a file that is trained or traced.

The device differentiates the traced operators itself; the Python code of a custom backward is never executed, so
training uses other gradients than intended.

Remedy: Express the operator in torch operations, whose derivatives the compiler knows, or register a custom operator
with poptorch.custom_op.

Example:
      import torch


    - class Clamp(torch.autograd.Function):
    -     @staticmethod
    -     def forward(ctx, x):
    -         return x.clamp(0, 1)
    -
    -     @staticmethod
    -     def backward(ctx, grad):
    -         return grad
    + def clamp(x):
    +     return x + (x.clamp(0, 1) - x).detach()
"""

from __future__ import annotations

import ast
from typing import List

from ignite_ipu.capabilities.traced import OWN_BACKWARD
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.ERROR, Outcome.REFUSED


def check(program: Program) -> Hits:
    for node in program.nodes(ast.ClassDef):
        if any(program.names.resolve(base) == "torch.autograd.Function" for base in node.bases):
            applied: List[ast.AST] = [call for call, owner in program.method_calls("apply") if owner == node.name]
            for place in applied or [node]:
                yield Hit(place, OWN_BACKWARD.reason(node.name), OWN_BACKWARD.remedy)
