"""float64, bfloat16 and complex tensors and models.

An IPU computes in float32 and float16. float64 is narrowed to float32 without a word; bfloat16 and complex numbers
cannot be used.

Remedy: Use float32, or model.half() for half precision.

Example:
      import torch

    - model = torch.nn.Linear(2, 2).to(torch.bfloat16)
    + model = torch.nn.Linear(2, 2).half()
"""

from __future__ import annotations

import ast

from ignite_ipu.capabilities import PRECISION, Treatment
from ignite_ipu.migration.findings import Hit, Hits, Outcome, Program, Severity

SEVERITY, RUN = Severity.WARNING, Outcome.REFUSED

_TYPES = {entry.name: entry for entry in PRECISION if not entry.name.startswith("torch.amp.")}


def check(program: Program) -> Hits:
    for node in program.nodes(ast.Attribute):
        name = program.names.resolve(node)
        if name is not None and name in _TYPES and not _is_named(program, node):
            yield _hit(node, name)
    models = program.training.models
    for dtype in ("bfloat16", "double"):
        for call, owner in program.method_calls(dtype):
            if owner in models:
                yield _hit(call, f"torch.{dtype}")


def _hit(node: ast.expr, name: str) -> Hit:
    narrowed = _TYPES[name].treatment is not Treatment.REFUSED
    return Hit(node, f"an IPU has no {name}", run=Outcome.UNCHANGED if narrowed else None)


def _is_named(program: Program, node: ast.Attribute) -> bool:
    """Return whether a type is only spoken of: one of a table, compared with, or that of autocast, another rule's."""
    above = program.parents[node]
    above = program.parents[above] if isinstance(above, (ast.keyword, ast.Tuple, ast.List, ast.Set)) else above
    return isinstance(above, (ast.Dict, ast.Compare)) or program.names.called(above) == "torch.amp.autocast"
