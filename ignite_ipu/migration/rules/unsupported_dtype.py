"""Number types that an IPU does not have."""

from __future__ import annotations

import ast

from ignite_ipu.migration.analysis.names import owner_of
from ignite_ipu.migration.findings import Hit, Hits, Rule, Severity
from ignite_ipu.migration.program import Program

_TYPES = {"bfloat16", "complex64", "complex128", "cfloat", "cdouble", "float64", "double"}


def check(program: Program) -> Hits:
    """Find number types that the device lacks."""
    for node in program.nodes(ast.Attribute):
        name = program.names.resolve(node)
        if name is not None and name.startswith("torch.") and name[len("torch.") :] in _TYPES:
            yield Hit(node, f"an IPU has no {name}")
    models = program.training.models
    for call in program.nodes(ast.Call):
        for dtype in ("bfloat16", "double"):
            if owner_of(call, dtype) in models:
                yield Hit(call, f"an IPU has no torch.{dtype}")


RULE = Rule(
    name="unsupported-dtype",
    severity=Severity.WARNING,
    summary="float64, bfloat16 and complex tensors and models.",
    rationale=(
        "An IPU computes in float32 and float16. float64 is narrowed to float32 without a word; bfloat16 and "
        "complex numbers cannot be used."
    ),
    remedy="Use float32, or model.half() for half precision.",
    example="""\
  import torch

- model = torch.nn.Linear(2, 2).to(torch.bfloat16)
+ model = torch.nn.Linear(2, 2).half()
""",
    check=check,
)
